"""The two models of `spec convert measure`: from what was given to what runs."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec import Struct

from ..console import Console
from ..open_model import open_runtime
from ..shared_options import PlaceOptions
from .hf import describe, make_plan
from .writing import writing

if TYPE_CHECKING:
    from ...core.runtime import Runtime
    from ...core.tokenizer import Tokenizer


class ComparedModel(Struct, frozen=True):
    """What a report says about a model; `bytes` of the files that were read."""

    name: str
    device: str
    architecture: str
    converted_to: str | None
    bytes: int
    weights: int
    bits_per_weight: float


class GivenModel(Struct, frozen=True):
    given: Path
    path: Path  # of its GGUF
    converted_to: str | None = None  # type of the GGUF, which is made of a checkpoint

    def facts(self, runtime: Runtime) -> ComparedModel:
        tensors = runtime.file.tensors.values()
        n_weights = sum(tensor.n_elements for tensor in tensors)
        n_bytes = sum(tensor.n_bytes for tensor in tensors)
        return ComparedModel(
            str(self.given),
            runtime.device,
            runtime.architecture,
            self.converted_to,
            sum(path.stat().st_size for path in runtime.file.paths),
            n_weights,
            8 * n_bytes / n_weights,
        )


def as_gguf(path: Path, output: Console, ends: ExitStack) -> GivenModel:
    """A folder is converted into a temporary GGUF of its own float type, which `ends` removes."""
    from ...core.model_names import find_model

    if not path.is_dir():
        return GivenModel(path, find_model(path))

    from ...convert.checkpoint.folder import Folder
    from ...convert.files.output_file import OutputFile
    from ...convert.hf import Options
    from ...core.backend.cpu.threads import default_threads

    opened, folder = describe(Folder(path), output)
    with opened:
        plan = make_plan(opened, folder, Options(mtp="without"), output)
        for note in plan.notes:
            output.remark(f"note: {note}")
        place = Path(ends.enter_context(TemporaryDirectory(prefix="spec-measure-")))
        out = place / f"{folder.resolve().name}.gguf"
        with writing(output, out) as progress:
            plan.write(OutputFile(out), progress, n_threads=default_threads())
    return GivenModel(path, out, plan.kind.upper())


def read_both_tokenizers(given: list[GivenModel], n_ctx: int, output: Console) -> Tokenizer:
    """The base's, which cuts the text; refuses models that cannot be compared."""
    from ...convert.measure.text_chunks import check_same_tokens, read_tokenizer

    mine, base = (read_tokenizer(each.path, n_ctx) for each in given)
    check_same_tokens(mine, base)
    rules, base_rules = _cutting_rules(mine), _cutting_rules(base)
    if rules != base_rules:
        output.remark(
            f"warning: {given[0].given} cuts text by other rules ({rules}) than the base "
            f"({base_rules}), whose tokens both read here"
        )
    return base


def _cutting_rules(tokenizer: Tokenizer) -> str:
    return f"{tokenizer.model} {tokenizer.pre}{', begins with BOS' if tokenizer.add_bos else ''}"


def load(
    model: GivenModel, device: str, n_ctx: int, threads: int | None, output: Console
) -> Runtime:
    from ...core.speculation.options import NO_SPECULATION

    place = PlaceOptions(
        device=device, ctx_size=n_ctx, threads=threads if device == "cpu" else None
    )
    return open_runtime(model.path, place, output, NO_SPECULATION)
