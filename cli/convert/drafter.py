"""`spec convert drafter`: a drafter of any layout to a GGUF file for -md, here and in llama.cpp."""

from __future__ import annotations

from pathlib import Path

from ..flags import REQUIRED, argument, flag, flag_group, takes_flags
from ..shared_options import VoiceOptions
from .hf import CheckpointOptions, HfOutputOptions, convert_checkpoint
from .writing import FORCE, JSON, REVISION, finish, quoted, size, writing


@flag_group("Drafter")
class DrafterOptions:
    drafter: str = argument(
        "DRAFTER",
        "GGUF in the names of ik_llama.cpp, of Lucebox or of an earlier llama.cpp; or a "
        "checkpoint, a folder or a repository owner/name.",
    )
    revision: str | None = REVISION
    target_model_dir: str | None = flag(
        "--target-model-dir TARGET",
        "Model that it drafts for: folder, repository or GGUF. Its tokenizer goes into a file that "
        "has none.",
    )


@flag_group("Output")
class DrafterOutput:
    output: Path = flag("--output -o OUT", "Output file.", REQUIRED)
    type: str = flag("--type TYPE", "Type of a checkpoint's matrices, as of hf.", "auto")
    force: bool = FORCE
    json: bool = JSON


@takes_flags
def drafter(options: DrafterOptions, out: DrafterOutput, voice: VoiceOptions) -> None:
    """Write a drafter of any known layout in the names that llama.cpp reads today.

    spec convert drafter dflash-draft-qwen35.gguf -o dflash-qwen35.gguf

    EAGLE3 and EAGLE-3.1, DFlash, DFlash2, DSpark, Gemma 4's assistants. What llama.cpp would pass
    over is named. Numbers stay as they are.
    """
    path = Path(options.drafter)
    if not path.is_file():
        checkpoint = CheckpointOptions(
            checkpoint=options.drafter,
            revision=options.revision,
            target_model_dir=options.target_model_dir,
        )
        result = HfOutputOptions(output=out.output, type=out.type, force=out.force, json=out.json)
        convert_checkpoint(checkpoint, result, voice.console(), only_drafters=True)
        return
    _rename(path, options, out, voice)


def _rename(path: Path, options: DrafterOptions, out: DrafterOutput, voice: VoiceOptions) -> None:
    from ...convert.drafters.renaming import plan_renaming
    from ...convert.files.output_file import OutputFile
    from ...convert.hf.drafters import open_target
    from ...core.gguf.reader import open_gguf

    output, tokenizer = voice.console(), None
    with open_gguf(path) as file:
        if options.target_model_dir is not None:
            target = open_target(options.target_model_dir)
            try:
                tokenizer, notes = target.tokenizer(target.sizes.n_vocab, None)
            finally:
                target.close()
            for note in notes:
                output.remark(f"note: {note}")
        plan = plan_renaming(file, tokenizer)
        for note in plan.notes:
            output.remark(f"note: {note}")
        with writing(output, out.output) as progress:
            (written,) = plan.write(OutputFile(out.output, out.force), progress)
    source = f", whose names were of {plan.written_for}" if plan.written_for else ""
    what = f"{plan.words}{source}, {size(written.stat().st_size)}"
    command = f"spec convert inspect MODEL.gguf --draft {quoted(written)}"
    finish(
        output, [written], what, command, as_json=out.json,
        drafter=plan.words, written_for=plan.written_for, notes=plan.notes,
    )  # fmt: skip
