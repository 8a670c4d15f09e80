"""Opening a model for a command, with progress on stderr."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

import typer

from .console import Console
from .log import show_log
from .shared_options import ModelOptions, PlaceOptions
from .summary import model_lines
from .usage import flag_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from ..core.gguf.overrides import Scalar
    from ..core.models.adapters import AdapterPath
    from ..core.runtime import Runtime
    from ..core.speculation.options import SpecOptions
    from ..core.state.budget import MemoryBudget
    from .image_options import ProjectorOptions
    from .spec_options import SpecFlags


def choose_model(
    models: ModelOptions,
    output: Console,
    spec: SpecFlags | None = None,
    *,
    with_mmproj: bool = False,
) -> Path:
    """Return the file of --model or --hf-repo, or the best one that is here. `spec`: whether
    drafters of the repository are downloaded with it."""
    from ..core.hub.hub_models import is_hub_name
    from ..core.model_names import find_model

    if models.hf_repo is not None:
        if models.model is not None:
            raise typer.BadParameter("--model and --hf-repo exclude each other")
        drafts = spec is not None and spec.takes_companions
        return _from_hub(
            models, models.hf_repo, output, models.hf_file,
            with_drafters=drafts, with_mmproj=with_mmproj,
        )  # fmt: skip
    if models.hf_file is not None:
        raise typer.BadParameter("--hf-file is a file of --hf-repo, which is not given")
    name = "" if models.model is None else str(models.model)
    found = find_model(models.model)
    if is_hub_name(name) and not found.exists():
        raise FileNotFoundError(2, "no such file", f"{name} (-hf {name} is that of the hub)")
    return found


def choose_drafts(spec: SpecFlags, models: ModelOptions, output: Console) -> list[Path] | None:
    """Return the files of --spec-draft-model and --spec-draft-hf; None: those beside the model."""
    from .spec_options import named_drafts

    named = named_drafts(spec.draft_models)
    if spec.draft_repo is None:
        return named
    return [*(named or ()), _from_hub(models, spec.draft_repo, output)]


def _from_hub(
    models: ModelOptions,
    name: str,
    output: Console,
    file: str | None = None,
    *,
    with_drafters: bool = False,
    with_mmproj: bool = False,
) -> Path:
    from ..core.hub.hub_models import HubModel, fetch, parse_hub_name

    with flag_errors():
        repo, quant = parse_hub_name(name)
    wanted = HubModel(
        repo, quant, file, models.hf_token, models.offline, with_drafters, with_mmproj
    )
    with output.cleared():
        return fetch(wanted, output.remark, output.progress)


def print_choice(models: ModelOptions, model: Path, output: Console) -> None:
    """Name the file on stderr if the user did not."""
    from ..core.model_names import INSTALL_SMOLLM2, VARIABLE, is_bundled

    if models.is_given:
        return
    output.remark(f"model      {model} (-m FILE for another)")
    if is_bundled(model) and not os.environ.get(VARIABLE):
        output.remark(f"           It writes Python-like code. For a chat: {INSTALL_SMOLLM2}")


def open_runtime(  # noqa: PLR0913 - all that a model is loaded with
    model: Path,
    place: PlaceOptions,
    output: Console,
    spec: SpecOptions | None = None,
    drafts: Sequence[Path] | None = None,
    projector: ProjectorOptions | None = None,
    overrides: Mapping[str, Scalar] | None = None,
    lora: Sequence[AdapterPath] = (),
    plan: Callable[[Runtime], MemoryBudget] = lambda runtime: runtime.budget,
) -> Runtime:
    """`plan`: the memory of what is to be written at once, for --verbose."""
    from .. import core

    show_log(output)
    if place.threads is not None and place.device != "cpu":
        raise typer.BadParameter(f"--threads is for --device cpu, not {place.device}")
    # Before the model is open, only a flag can be wrong.
    with flag_errors(), output.cleared():
        runtime = core.load(
            model,
            place.device,
            n_ctx=place.ctx_size or None,
            n_batch=place.batch_size,
            threads=place.threads,
            repack_cache=place.repack_cache or _is_repack_cache_set(place.device),
            cache_type_k=place.cache_type_k,
            cache_type_v=place.cache_type_v,
            spec=spec,
            draft=drafts,
            progress=output.progress,
            overrides=overrides or {},
            lora=lora,
            **({} if projector is None else projector.given),
        )
        lines = model_lines(runtime, plan(runtime)) if output.verbose else ()  # they take time
    for line in lines:
        output.note(line)
    return runtime


def _is_repack_cache_set(device: str) -> bool:
    """Whether SPEC_REPACK_CACHE=1 applies: only --device cpu repacks weights."""
    return device == "cpu" and os.environ.get("SPEC_REPACK_CACHE") == "1"


def warm_up(runtime: Runtime, output: Console) -> None:
    """Compile all missing kernels, so that the first token need not wait for them."""
    with flag_errors(), output.cleared():  # a drafter is made here, and a flag chose it
        runtime.warm_up()
    gc.freeze()  # loaded objects stay, and scanning them again takes milliseconds
