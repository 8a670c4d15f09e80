"""Reads what LM Studio's clients say about speculation, in the words of `speculative`."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final, TypeVar

from ..speculation.options import DFLASH, DRAFT, MTP
from .body_parts import LmStudioDrafts, Speculative
from .request_bodies import SharedBody
from .request_decoding import refuse

if TYPE_CHECKING:
    from ..runtime import Runtime

T = TypeVar("T")
_OBJECT: Final = "speculativeDecoding"
# The switches and files that choose a drafter; a sidecar is a drafter in a file of its own.
_TYPES: Final = {
    "draft_mtp": MTP,
    "draft_simple": DRAFT,
    "draft_mtp_sidecar": MTP,
    "draft_dflash_sidecar": DFLASH,
    "draft_dspark_sidecar": DFLASH,
}


def read_speculative(body: SharedBody, runtime: Runtime) -> Speculative | bool | None:
    """Returns what `speculative` says, or the same from LM Studio's fields."""
    given = body.speculative_decoding
    if given is None and not body.draft_model:
        return body.speculative
    if body.speculative is not None:
        refuse("speculative", f"and {_OBJECT} or draft_model are the same: give one")
    given = given or LmStudioDrafts()
    named = given.draft_model or body.draft_model
    types = {_TYPES[name] for name in _TYPES if getattr(given, name)}
    if named:
        types |= _drafters_of(named, runtime)
    exact = given.num_draft_tokens_exact
    return Speculative(
        types=sorted(types) or None,
        n_max=_first(exact, given.draft_max_tokens, given.max_tokens_to_draft),
        n_min=_first(exact, given.draft_min_tokens, given.min_draft_length_to_consider),
        p_min=_first(given.draft_min_continue_probability, given.min_continue_drafting_probability),
    )


def _first(*values: T | None) -> T | None:
    return next((value for value in values if value is not None), None)


def _drafters_of(name: str, runtime: Runtime) -> set[str]:
    """Drafters are loaded with the model: a request can only choose among them."""
    wanted = PurePosixPath(name.replace("\\", "/")).name.lower().removesuffix(".gguf")
    found, paths = set(), [each.file.path for each in runtime.draft_files]
    for each, path in zip(runtime.draft_files, paths, strict=True):
        if wanted in (path.stem.lower(), path.parent.name.lower()):
            found.add(each.drafter)
    if not found:
        there = ", ".join(path.name for path in paths) or "none"
        refuse(
            "draft_model",
            f"{name!r:.80} is not loaded (there is {there}): start the server with -md",
        )
    return found
