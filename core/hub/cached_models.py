"""Models in the hub's cache, by the names that llama-server gives them: `owner/name:QUANT`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ..errors import ConfigError
from .hub_cache import (
    HubFile,
    cache_folder,
    files_in,
    remove_files,
    remove_unfinished,
    snapshots,
)
from .hub_models import HubModel, choose_files, is_hub_name, is_model_file, quant_of

_PREFIX: Final = "models--"


def cached_models() -> dict[str, Path]:
    """Returns the files, or the first of their parts. Of a model whose name says no quantisation
    that is `owner/name`."""
    found: dict[str, Path] = {}
    for folder in sorted(cache_folder().glob(f"{_PREFIX}*--*")):
        repo = "/".join(folder.name.removeprefix(_PREFIX).split("--"))
        for snapshot in snapshots(repo) if is_hub_name(repo) else ():
            names = files_in(snapshot)
            for wanted in _kinds(repo, names):
                found.setdefault(wanted.shown, snapshot / _first(names, wanted))
    return found


def remove_cached(model: str) -> None:
    """`model`: a name that `cached_models` gives. With the last model of a repository go the GGUF
    files beside it."""
    repo, _, quant = model.partition(":")
    wanted = HubModel(repo, quant or None)
    for snapshot in snapshots(repo):
        names = files_in(snapshot)
        if wanted in _kinds(repo, names):
            remove_files(snapshot / name for name in choose_files(names, wanted))
        left = files_in(snapshot)
        if not _kinds(repo, left):
            remove_files(snapshot / name for name in left if name.lower().endswith(".gguf"))


def remove_begun(files: list[HubFile]) -> None:
    """What a download that did not end has left."""
    for file in files:
        remove_unfinished(file)


def _kinds(repo: str, names: list[str]) -> list[HubModel]:
    """The models among files of a repository: one of each quantisation, with all of its parts."""
    quants = dict.fromkeys(quant_of(name) for name in names if is_model_file(name))
    wanted = [HubModel(repo, quant) for quant in quants if quant is not None]
    if None in quants and not wanted:
        wanted.append(HubModel(repo))
    return [each for each in wanted if _first(names, each)]


def _first(names: list[str], wanted: HubModel) -> str:
    """Empty if a part is missing."""
    try:
        return choose_files(names, wanted)[0]
    except ConfigError:
        return ""
