"""`spec convert inspect`: what a file is, what is wrong with it, and whether it speculates."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ...core.errors import ConfigError
from ..console import Console
from ..flags import argument, flag, flag_group, takes_flags
from ..shared_options import PlaceOptions, VoiceOptions
from .inspect_text import metadata_lines, tensor_line
from .judging import (
    VerdictCommand,
    VerdictOptions,
    Wanted,
    failures_as_json,
    give_verdict,
    open_named,
)
from .writing import REVISION

if TYPE_CHECKING:
    from ...convert.checkpoint import ModelCheckpoint
    from ...convert.verify import OpenedGguf

ALL = "*"


class InspectCommand(VerdictCommand):
    """`--tensors` may stand without a pattern, which the parser has no notion of."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--tensors" in args:
            at = args.index("--tensors") + 1
            behind = args[at:]
            words = [word for word in (*args[: at - 1], *behind[1:]) if not word.startswith("-")]
            if not behind or behind[0].startswith("-") or not words:
                args = [*args[:at], ALL, *behind]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


@flag_group("Model")
class InspectOptions:
    model: str = argument(
        "MODEL",
        "GGUF file (any of its parts), a folder of safetensors, or a repository: "
        "owner/name[@revision], owner/name/FILE.gguf. Of a repository only headers are read.",
    )
    draft: str | None = flag(
        "--draft FILE", "Draft model, or file of a drafter or MTP head, to compare with it."
    )
    target: str | None = flag(
        "--target MODEL", "Say only whether FILE, a drafter, goes with this model."
    )
    run: bool = flag(
        "--run",
        "Read every number, and write a short text with each drafter and without; with --draft or "
        "--target, measure what the drafter brings.",
    )
    revision: str | None = REVISION


@flag_group("Lists")
class ListingOptions:
    tensors: str | None = flag(
        "--tensors [PATTERN]",
        "List tensors instead: all, or those whose names match a pattern such as *.attn_*, or "
        "contain this.",
    )
    metadata: bool = flag("--metadata", "List the keys of the metadata instead.")


@takes_flags
def inspect(
    what: InspectOptions,
    options: VerdictOptions,
    listings: ListingOptions,
    place: PlaceOptions,
    voice: VoiceOptions,
) -> None:
    """Say what a model file is, which speculation it supports, and what is wrong with it.

    Ends with 0 if nothing in the file is broken here, and with 1 otherwise.

    spec convert inspect Qwen3.6-27B-Q4_K_M.gguf
    """
    output = voice.console()
    if listings.tensors is None and not listings.metadata:
        wanted = Wanted(what.model, what.draft, what.target, what.revision, what.run, what.run)
        give_verdict(wanted, options, place, output)
        return
    with failures_as_json(what.model, output, as_json=options.json):
        if what.draft is not None or what.target is not None or what.run:
            raise ConfigError("--draft, --target, --run: not with --tensors and --metadata")
        opened = open_named(what.model, what.revision, output)
        _list(opened, listings, output, as_json=options.json)


def _list(
    opened: OpenedGguf | ModelCheckpoint,
    listings: ListingOptions,
    output: Console,
    *,
    as_json: bool,
) -> None:
    found: dict[str, Any] = {}
    if listings.tensors is not None:
        found["tensors"] = [
            entry for entry in _tensors(opened) if is_like(entry["name"], listings.tensors)
        ]
    if listings.metadata:
        found["metadata"] = _metadata(opened)
    if as_json:
        output.line(json.dumps(found, ensure_ascii=False))
        return
    for entry in found.get("tensors", ()):
        output.line(tensor_line(entry))
    for line in metadata_lines(found.get("metadata", {})):
        output.line(line)
    if listings.tensors is not None and not found["tensors"]:
        output.remark(f"no tensor is called like {listings.tensors}")


def is_like(name: str, pattern: str) -> bool:
    if any(c in pattern for c in "*?["):
        return fnmatchcase(name, pattern)
    return pattern in name


def _tensors(opened: OpenedGguf | ModelCheckpoint) -> list[dict[str, Any]]:
    from ...convert.checkpoint import ModelCheckpoint

    if isinstance(opened, ModelCheckpoint):
        stored = [(t.name, t.dtype, t.shape, t.n_bytes) for t in opened.tensors.values()]
    else:
        tensors = opened.file.tensors.values()
        stored = [(t.name, t.format.name, t.shape, t.n_bytes) for t in tensors]
    return [
        {"name": name, "type": kind, "shape": list(shape), "bytes": n_bytes}
        for name, kind, shape, n_bytes in stored
    ]


def _metadata(opened: OpenedGguf | ModelCheckpoint) -> dict[str, Any]:
    from ...convert.checkpoint import ModelCheckpoint
    from ...convert.files.gguf_facts import plain_metadata

    if isinstance(opened, ModelCheckpoint):
        return opened.config
    return plain_metadata(opened.file.metadata)
