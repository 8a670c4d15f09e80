"""`spec convert lora`: a LoRA adapter of PEFT to a GGUF file for --lora, here and in llama.cpp."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..console import Console
from ..flags import REQUIRED, argument, flag, flag_group, takes_flags
from ..shared_options import VoiceOptions
from .writing import FORCE, JSON, REVISION, finish, quoted, size, writing

if TYPE_CHECKING:
    from ...convert.checkpoint import ModelCheckpoint


@flag_group("Adapter")
class LoraOptions:
    adapter: str = argument(
        "ADAPTER",
        "Folder with adapter_config.json and adapter_model.safetensors, or a repository "
        "owner/name.",
    )
    revision: str | None = REVISION
    base: str | None = flag(
        "--base CHECKPOINT",
        "Checkpoint that it was trained for, folder or repository, of which names and shapes are "
        "read; what adapter_config.json names if not given.",
    )


@flag_group("Output")
class LoraOutput:
    output: Path = flag("--output -o OUT", "Output file.", REQUIRED)
    type: str = flag("--type f32|f16|bf16", "Type of the factors.", "f32")
    force: bool = FORCE
    json: bool = JSON


@takes_flags
def lora(options: LoraOptions, out: LoraOutput, voice: VoiceOptions) -> None:
    """Convert a LoRA adapter of PEFT to GGUF.

    spec convert lora ./my-adapter --base ./Qwen3-0.6B -o my-adapter.gguf

    For the families of spec convert hf. Numbers stay as they are; rows and columns go where the
    conversion of the base model puts them.
    """
    from ...convert.checkpoint import open_place
    from ...convert.files.output_file import OutputFile, write
    from ...convert.hf.adapters import open_peft, plan_adapter
    from ...convert.hf.adapters.adapter_planning import TYPES

    if out.type not in TYPES:
        raise typer.BadParameter(f"--type must be one of {', '.join(TYPES)}, got {out.type!r:.40}")
    output = voice.console()
    with output.cleared():
        output.progress(f"reading {options.adapter}", 0.0)
        place = open_place(options.adapter, options.revision)
        adapter = open_peft(place)
    try:
        base = _open_base(options, adapter.base, output)
        try:
            plan = plan_adapter(adapter, base)
            inputs = [*place.paths(), *base.place.paths()]
        finally:
            base.close()
    finally:
        adapter.close()
    with writing(output, out.output) as progress:
        target = OutputFile(out.output, out.force)
        paths = write(target, plan.metadata, plan.tensors(out.type), [], progress, inputs)
    n = len(plan.factors)
    what = f"{n} matrices of {plan.metadata['general.architecture']}, rank {plan.rank}"
    what += f", {size(paths[0].stat().st_size)}"
    command = f"spec generate -m MODEL.gguf --lora {quoted(paths[0])} '...'"
    finish(output, paths, what, command, as_json=out.json, matrices=n, rank=plan.rank)


def _open_base(options: LoraOptions, named: str, output: Console) -> ModelCheckpoint:
    from ...convert.checkpoint import open_checkpoint

    name = options.base or named
    if not name:
        raise typer.BadParameter(
            "adapter_config.json names no base model: give its checkpoint with --base"
        )
    if options.base is None:
        output.remark(f"base       {name} (as adapter_config.json says; --base for another)")
    with output.cleared():
        output.progress(f"reading {name}", 0.0)
        return open_checkpoint(name)
