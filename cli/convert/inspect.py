"""`spec convert inspect`: what a file is, what is wrong with it, and whether it speculates."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import typer

from ...core.errors import ConfigError
from ..console import Console
from ..flags import SectionedCommand, argument, flag, flag_group, takes_flags
from ..shared_options import VoiceOptions
from .inspect_text import metadata_lines, report_lines, tensor_line
from .writing import REVISION

if TYPE_CHECKING:
    from ...convert.checkpoint import ModelCheckpoint
    from ...convert.verify import FileReport, OpenedGguf
    from ...core.speculation.drafter_results import DrafterResult

ALL = "*"


class InspectCommand(SectionedCommand):
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
        "--run", "With --draft or --target: load both, and measure what the drafter brings."
    )
    revision: str | None = REVISION


@flag_group("Output")
class ListingOptions:
    tensors: str | None = flag(
        "--tensors [PATTERN]",
        "List tensors instead: all, or those whose names match a pattern such as *.attn_*, or "
        "contain this.",
    )
    metadata: bool = flag("--metadata", "List the keys of the metadata instead.")
    json: bool = flag("--json", "One JSON object instead of text.")


@takes_flags
def inspect(what: InspectOptions, listings: ListingOptions, voice: VoiceOptions) -> None:
    """Say what a model file is, which speculation it supports, and what is wrong with it.

    Ends with 0 if the file is sound, and with 1 if something in it is broken.

    spec convert inspect Qwen3.6-27B-Q4_K_M.gguf
    """
    output = voice.console()
    opened = _open(what.model, what.revision, output)
    if what.draft is not None and what.target is not None:
        raise ConfigError("give --draft to compare a drafter with MODEL, or --target, not both")
    compares = what.draft is not None or what.target is not None
    if (listings.tensors is not None or listings.metadata) and compares:
        raise ConfigError("--draft and --target go with neither --tensors nor --metadata")
    if listings.tensors is not None or listings.metadata:
        _list(opened, listings, output)
        return
    report = _examine(what, opened, output)
    if listings.json:
        output.line(json.dumps(report.json(), ensure_ascii=False))
    else:
        for line, style in report_lines(report, output.width):
            output.text(line, style)
            output.line("")
    if not report.is_sound:
        raise typer.Exit(1)


def _examine(
    what: InspectOptions, opened: OpenedGguf | ModelCheckpoint, output: Console
) -> FileReport:
    if what.run and what.draft is None and what.target is None:
        raise ConfigError("--run measures a drafter: give --draft FILE, or --target MODEL for one")
    named = what.draft if what.target is None else what.target
    other = None if named is None else _open(named, None, output)
    report = _compare(what, opened, other)
    if what.run and report.is_sound:
        report = _compare(what, opened, other, _measure(what, output))
    return report


def _compare(
    what: InspectOptions,
    opened: OpenedGguf | ModelCheckpoint,
    other: OpenedGguf | ModelCheckpoint | None,
    measured: DrafterResult | None = None,
) -> FileReport:
    from ...convert.verify import examine, examine_pair

    if what.target is not None and other is not None:
        return examine_pair(opened, other, measured)
    return examine(opened, other, measured=measured)


def _measure(what: InspectOptions, output: Console) -> DrafterResult:
    from ...core.load_runtime import load_runtime
    from ...core.speculation.options import SpecOptions
    from ...core.try_drafter import try_drafter

    model, draft = what.model, what.draft
    if what.target is not None:
        model, draft = what.target, what.model
    output.progress(f"loading {model}", 0.0)
    with output.cleared(), load_runtime(model, "cpu", draft=draft, spec=SpecOptions()) as runtime:
        output.progress("drafting two short texts", 0.0)
        (loaded,) = runtime.draft_files
        return try_drafter(runtime, loaded.drafter)


def _open(where: str, revision: str | None, output: Console) -> OpenedGguf | ModelCheckpoint:
    from ...convert.verify import open_anything
    from ...core.model_names import find_model

    # smollm2 and nano name what is installed.
    if where and "/" not in where and "\\" not in where:
        where = str(find_model(where))
    output.progress(f"reading {where}", 0.0)  # which is seen of slow servers only
    with output.cleared():
        return open_anything(where, revision)


def _list(opened: OpenedGguf | ModelCheckpoint, listings: ListingOptions, output: Console) -> None:
    found: dict[str, Any] = {}
    if listings.tensors is not None:
        found["tensors"] = [
            entry for entry in _tensors(opened) if is_like(entry["name"], listings.tensors)
        ]
    if listings.metadata:
        found["metadata"] = _metadata(opened)
    if listings.json:
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
    from ...convert.verify.gguf_facts import plain_metadata

    if isinstance(opened, ModelCheckpoint):
        return opened.config
    return plain_metadata(opened.file.metadata)
