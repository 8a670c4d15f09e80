"""Models of the Hugging Face hub by name, `owner/name[:quant]`, downloaded once into its cache.

Which file a name means is as in llama.cpp: that of the quantisation, else Q4_K_M, else Q8_0, else
the first. What was downloaded is found without a network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from ..errors import ConfigError, UnavailableError
from ..gguf.printable import printable
from ..gguf.reader import open_gguf
from .http_client import HttpClient, RemoteError, hub_token
from .hub_cache import (
    HubFile,
    check_room,
    download_file,
    files_in,
    is_commit,
    is_safe_name,
    set_revision,
    snapshots,
)

_NAME: Final = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(:(?P<quant>[\w.-]+))?")
_TIMEOUT_S: Final = 10.0
PREFERRED: Final = ("Q4_K_M", "Q8_0")
DRAFTER_FOLDERS: Final = ("mtp", "draft", "drafts", "drafter", "drafters")  # within a model's
_KINDS: Final = ("mtp", "dspark", "dflash", "eagle3")  # of drafters, as their files are called
_DRAFTER: Final = re.compile(rf"(^|/)({'|'.join(_KINDS)})[-./]", re.IGNORECASE)
_OTHERS: Final = re.compile(r"(^|/)(mmproj|imatrix)[^/]*$", re.IGNORECASE)  # beside a model
_MMPROJ: Final = re.compile(r"(^|/)mmproj[^/]*\.gguf$", re.IGNORECASE)
_MMPROJ_TYPES: Final = ("f16", "q8_0")  # bf16 as well
_PART: Final = re.compile(r"-\d{5}-of-(\d{5})\.gguf$")
_QUANT: Final = re.compile(r"[-.]((UD-)?(I?Q\d\w*|TQ\d\w*|BF16|F16|F32|MXFP4\w*|NVFP4))[-.]", re.I)

Announce = Callable[[str], None]


class HubModel(Struct, frozen=True):
    repo: str
    quant: str | None = None
    file: str | None = None  # instead of the choice among files
    token: str | None = None
    offline: bool = False
    with_drafters: bool = False  # those of the repository, too, one of each kind
    with_mmproj: bool = False  # the file of its vision tower, too

    @property
    def shown(self) -> str:
        return f"{self.repo}:{self.quant}" if self.quant else self.repo


def is_hub_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def parse_hub_name(text: str) -> tuple[str, str | None]:
    """Returns the repository and the quantisation."""
    found = _NAME.fullmatch(text)
    if found is None:
        raise ConfigError(f"hf-repo is like owner/name or owner/name:Q4_K_M, got {text!r:.80}")
    return found["repo"], found["quant"]


def is_model_file(name: str) -> bool:
    """Neither a drafter nor what else lies beside a model."""
    is_gguf = name.lower().endswith(".gguf")
    return is_gguf and not _OTHERS.search(name) and not _DRAFTER.search(name)


def quant_of(name: str) -> str | None:
    """The quantisation in a file's name, in capitals."""
    found = _QUANT.search(name)
    return None if found is None else found[1].upper()


def choose_files(names: Iterable[str], wanted: HubModel) -> list[str]:
    """Returns the file of a model, and its further parts, in order."""
    listed = sorted(n for n in names if n.lower().endswith(".gguf") and not _OTHERS.search(n))
    whole = [name for name in listed if is_model_file(name)]
    models = whole if whole and wanted.file is None else listed
    if wanted.file is not None:
        if wanted.file not in models:
            raise ConfigError(f"{wanted.repo} has no file {printable(wanted.file)}{_has(models)}")
        return _parts(wanted.file, models)
    if not models:
        raise ConfigError(
            f"{wanted.repo} has no GGUF file; spec convert hf {wanted.repo} makes one of a "
            "checkpoint"
        )
    for quant in (wanted.quant,) if wanted.quant else PREFERRED:
        mark = re.compile(rf"(^|[-./]){re.escape(quant)}[-./]", re.IGNORECASE)
        if found := next((name for name in models if mark.search(name)), None):
            return _parts(found, models)
    if wanted.quant:
        raise ConfigError(f"{wanted.repo} has no file of {wanted.quant}{_has(models)}")
    return _parts(models[0], models)


def choose_drafters(names: Iterable[str], model: str) -> list[str]:
    """Returns one file of each kind beside a model's: of the same quantisation, else Q8_0, else the
    first."""
    own = PurePosixPath(model).parent
    marks = [found[1].lower() for found in [_QUANT.search(model)] if found] + ["q8_0"]
    chosen: dict[str, str] = {}
    for name in sorted(n for n in names if n.lower().endswith(".gguf") and not _PART.search(n)):
        kind, folder = _kind(name), PurePosixPath(name).parent
        is_below = folder.parent == own and folder.name.lower() in DRAFTER_FOLDERS
        if not kind or not (folder == own or is_below):
            continue
        ranks = [
            next((i for i, mark in enumerate(marks) if mark in each.lower()), len(marks))
            for each in (name, chosen.get(kind, name))
        ]
        if kind not in chosen or ranks[0] < ranks[1]:
            chosen[kind] = name
    return list(chosen.values())


def choose_mmproj(names: Iterable[str], model: str) -> str | None:
    """Returns the mmproj file beside a model's: half floats, else Q8_0, else the first."""
    own = PurePosixPath(model).parent
    found = sorted(n for n in names if PurePosixPath(n).parent == own and _MMPROJ.search(n))
    for mark in _MMPROJ_TYPES:
        if chosen := next((name for name in found if mark in name.lower()), None):
            return chosen
    return found[0] if found else None


class FoundModel(Struct, frozen=True):
    """What the hub has of a model."""

    wanted: HubModel
    commit: str
    names: tuple[str, ...]  # of its file, or of all its parts
    files: dict[str, HubFile]  # all of the repository

    @property
    def first_files(self) -> list[HubFile]:
        """Without those beside the model, which depend on what is in it."""
        found = list(self.names)
        if self.wanted.with_mmproj and (mmproj := choose_mmproj(self.files, self.names[0])):
            found.append(mmproj)
        return [self.files[name] for name in found]


def look_up(wanted: HubModel) -> FoundModel:
    """Asks the hub. A `ConfigError` if it has no such model, or not for us; an `UnavailableError`
    if it cannot be reached, or not asked."""
    import huggingface_hub as hub
    from huggingface_hub import constants, errors

    if wanted.offline or constants.HF_HUB_OFFLINE:
        raise UnavailableError("the network is not used")
    try:
        api = hub.HfApi(constants.ENDPOINT, wanted.token)
        # Not `list_repo_files`, which tries for half a minute where there is no network.
        info = api.model_info(wanted.repo, timeout=_TIMEOUT_S, files_metadata=True)
    except errors.GatedRepoError:
        raise _gated(wanted) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"the hub has no {wanted.repo}, or it is private: --hf-token or HF_TOKEN gives access"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        raise ConfigError(f"{wanted.repo} cannot be downloaded: the hub answers {status}") from None
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # no answer
        raise _unreachable(error) from None
    files, commit = {}, info.sha or ""
    for each in info.siblings or ():
        if is_safe_name(each.rfilename) and each.size is not None:
            sha256 = None if each.lfs is None else each.lfs.sha256
            files[each.rfilename] = HubFile(wanted.repo, commit, each.rfilename, each.size, sha256)
    if not is_commit(commit):
        raise ConfigError(f"{wanted.repo} cannot be downloaded: the hub names no revision")
    return FoundModel(wanted, commit, tuple(choose_files(files, wanted)), files)


def download(
    found: FoundModel,
    announce: Announce = lambda _line: None,
    report: Callable[[HubFile, int], None] = lambda _file, _n: None,
) -> Path:
    """Returns the file on this machine, or the first of its parts. Downloads what is missing, and
    goes on where an earlier download ended. `report` is called with the number of bytes of a file
    that are there; what it raises ends the download."""
    from huggingface_hub import constants

    wanted = found.wanted
    client = HttpClient(constants.ENDPOINT, wanted.token or hub_token())
    try:
        check_room(found.first_files)
        announce(f"hub        {wanted.repo}: {', '.join(found.names)}")
        for name in found.names:
            file = found.files[name]
            download_file(client, file, partial(report, file))
        path = found.files[found.names[0]].path
        for name, use in _files_beside(wanted, path, found.names[0], found.files):
            announce(f"hub        {wanted.repo}: {name}, {use}")
            file = found.files[name]
            download_file(client, file, partial(report, file))
    finally:
        client.close()
    set_revision(wanted.repo, "main", found.commit)
    return path


def fetch(
    wanted: HubModel,
    announce: Announce = lambda _line: None,
    progress: Callable[[str, float], None] = lambda _stage, _share: None,
) -> Path:
    """Like `download`; without a network, what was downloaded before."""

    def report(file: HubFile, n: int) -> None:
        progress(f"downloading {file.name}", n / max(file.size, 1))

    try:
        return download(look_up(wanted), announce, report)
    except (UnavailableError, RemoteError) as error:
        if (path := cached_path(wanted)) is not None:
            return path
        if isinstance(error, RemoteError):
            raise
        raise ConfigError(f"{error}, and {wanted.shown} was not downloaded before") from None


def cached_path(wanted: HubModel) -> Path | None:
    """The file of a model in the hub's cache, or the first of its parts."""
    for snapshot in snapshots(wanted.repo):
        names = files_in(snapshot)
        if any(name.lower().endswith(".gguf") for name in names):
            return snapshot / choose_files(names, wanted)[0]
    return None


def _kind(name: str) -> str:
    """Of a drafter, by its file's name; "" for a model."""
    found = _DRAFTER.search(name)
    return found[2].lower() if found else ""


def _files_beside(
    wanted: HubModel, path: Path, model: str, names: Iterable[str]
) -> Iterator[tuple[str, str]]:
    """Further files that a downloaded model has a use for, and which. A head of its own is in its
    file."""
    if wanted.with_mmproj and (mmproj := choose_mmproj(names, model)):
        yield mmproj, "with which it sees images"
    drafters = choose_drafters(names, model) if wanted.with_drafters else []
    if drafters:
        with open_gguf(path) as file:
            has_head = file.metadata.int("nextn_predict_layers", 0) > 0
        for name in drafters:
            if not has_head or _kind(name) != "mtp":
                yield name, "which drafts for it"


def _parts(name: str, models: list[str]) -> list[str]:
    """All parts of a model that is split."""
    found = _PART.search(name)
    if found is None:
        return [name]
    n, stem = int(found[1]), name[: found.start()]
    parts = [f"{stem}-{i:05d}-of-{n:05d}.gguf" for i in range(1, n + 1)]
    if missing := [part for part in parts if part not in models]:
        raise ConfigError(f"{printable(name)} is one of {n} parts, and {missing[0]} is missing")
    return parts


def _has(models: list[str]) -> str:
    quants = [found[1] for name in models if (found := _QUANT.search(name))]
    shown = list(dict.fromkeys(quants)) or models
    return f"; it has {', '.join(map(printable, shown[:20]))}" if shown else ""


def _gated(wanted: HubModel) -> ConfigError:
    return ConfigError(
        f"{wanted.repo} is gated: accept its terms on its page, and give a token of yours "
        "(--hf-token, HF_TOKEN or hf auth login)"
    )


def _unreachable(error: Exception) -> UnavailableError:
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return UnavailableError(f"the hub cannot be reached ({printable(line[:200])})", retry_after=60)
