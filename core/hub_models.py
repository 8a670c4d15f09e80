"""Models of the Hugging Face hub by name, `owner/name[:quant]`, downloaded once into its cache.

Which file a name means is as in llama.cpp: that of the quantisation, else Q4_K_M, else Q8_0, else
the first. What was downloaded is found without a network.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from msgspec import Struct

from .errors import ConfigError
from .gguf.printable import printable
from .gguf.reader import open_gguf

_NAME: Final = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(:(?P<quant>[\w.-]+))?")
_TIMEOUT_S: Final = 10.0
_PREFERRED: Final = ("Q4_K_M", "Q8_0")
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


def choose_files(names: Iterable[str], wanted: HubModel) -> list[str]:
    """Returns the file of a model, and its further parts, in order."""
    listed = sorted(n for n in names if n.lower().endswith(".gguf") and not _OTHERS.search(n))
    whole = [name for name in listed if not _DRAFTER.search(name)]
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
    for quant in (wanted.quant,) if wanted.quant else _PREFERRED:
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


def fetch(
    wanted: HubModel, announce: Announce = lambda _line: None, *, shows_bars: bool = False
) -> Path:
    """Returns the file on this machine, or the first of its parts. Downloads what is missing, and
    goes on where an earlier download ended. `shows_bars`: of progress, on stderr."""
    import huggingface_hub as hub
    from huggingface_hub import constants, errors
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if wanted.offline or constants.HF_HUB_OFFLINE:
        return _cached(wanted, "")
    if not shows_bars:
        disable_progress_bars()
    try:
        api = hub.HfApi(constants.ENDPOINT, wanted.token)
        # Not `list_repo_files`, which tries for half a minute where there is no network.
        listed = api.model_info(wanted.repo, timeout=_TIMEOUT_S).siblings or ()
        names = choose_files([each.rfilename for each in listed], wanted)
        announce(f"hub        {wanted.repo}: {', '.join(names)}")
        cache = constants.HF_HUB_CACHE
        paths = [api.hf_hub_download(wanted.repo, name, cache_dir=cache) for name in names]
        all_names = [each.rfilename for each in listed]
        for name, use in _files_beside(wanted, Path(paths[0]), names[0], all_names):
            announce(f"hub        {wanted.repo}: {name}, {use}")
            api.hf_hub_download(wanted.repo, name, cache_dir=cache)
    except errors.GatedRepoError:
        raise ConfigError(
            f"{wanted.repo} is gated: accept its terms on its page, and give a token of yours "
            "(--hf-token, HF_TOKEN or hf auth login)"
        ) from None
    except errors.RepositoryNotFoundError:
        raise ConfigError(
            f"the hub has no {wanted.repo}, or it is private: --hf-token or HF_TOKEN gives access"
        ) from None
    except errors.LocalEntryNotFoundError as error:
        return _cached(wanted, _reason(error))
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        raise ConfigError(f"{wanted.repo} cannot be downloaded: the hub answers {status}") from None
    except errors.HTTPError as error:  # type: ignore[attr-defined]  # no answer
        return _cached(wanted, _reason(error))
    except OSError as error:
        if error.errno is not None:  # of the disk
            raise
        return _cached(wanted, _reason(error))
    return Path(paths[0])


def _kind(name: str) -> str:
    """Of a drafter, by its file's name; "" for a model."""
    found = _DRAFTER.search(name)
    return found[2].lower() if found else ""


def _files_beside(
    wanted: HubModel, path: Path, model: str, names: list[str]
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


def _cached(wanted: HubModel, failure: str) -> Path:
    """The file in the hub's cache. `failure`: why the hub was not asked."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = [
            repo
            for repo in scan_cache_dir(constants.HF_HUB_CACHE).repos
            if repo.repo_id == wanted.repo
        ]
    except CacheNotFound:
        repos = []
    revisions = [each for repo in repos for each in repo.revisions]
    for revision in sorted(revisions, key=lambda each: -each.last_modified):
        folder = revision.snapshot_path
        names = [file.file_path.relative_to(folder).as_posix() for file in revision.files]
        if any(name.lower().endswith(".gguf") for name in names):
            return Path(folder, choose_files(names, wanted)[0])
    why = f"the hub cannot be reached ({failure})" if failure else "the network is not used"
    raise ConfigError(f"{why}, and {wanted.shown} was not downloaded before")


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


def _reason(error: Exception) -> str:
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return printable(line[:200])
