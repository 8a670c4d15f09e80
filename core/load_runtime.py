"""`load_runtime`: a file, its drafters and its mmproj file, checked and loaded as one runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from .backend import create_backend
from .backend.cpu.threads import usable_threads
from .backend.interface import Backend
from .backend.layers import KvTypes
from .errors import ConfigError, ModelError
from .fitting import (
    LEAST_CONTEXT,
    available_beside_drafts,
    context_length,
    fitting_context,
    load_drafts_beside,
    warn_of_shorter_context,
)
from .gguf.checks import check_vocabulary
from .gguf.overrides import Scalar, with_overrides
from .gguf.reader import GgufFile, open_gguf
from .model_names import find_model
from .models import build_model, for_context
from .models.adapters import AdapterPath, AdapterSet
from .models.demand import Demand
from .models.model import Model
from .ranks.backend import RankedBackend
from .ranks.devices import OneIsTooSmallError, check_devices, each_device, n_others
from .ranks.load import load_ranked, on_several, open_ranks
from .runtime import Runtime
from .speculation.draft_file import leave_out, open_drafts
from .speculation.options import AUTO, BY_DEFAULT, EAGLE3, MTP, SpecOptions
from .speculation.setting import LoadedModel
from .state.budget import TooLargeError
from .state.sizes import StateSizes
from .tokenizer import load_tokenizer
from .vision.mmproj_options import MmprojOptions, check_mmproj

Progress = Callable[[str, float], None]  # stage, and the fraction of it that is done


def load_runtime(  # noqa: PLR0913 - keyword options of the user
    path: str | Path | None = None,
    device: str = "auto",
    *,
    n_ctx: int | None = None,
    n_batch: int | None = None,
    threads: int | None = None,
    cache_type_k: str = "f16",
    cache_type_v: str = "f16",
    repack_cache: bool = False,
    spec: SpecOptions | None = None,
    draft: str | Path | Iterable[str | Path] | None = None,
    progress: Progress | None = None,
    mmproj: str | Path | None = None,
    image_min_tokens: int | None = None,
    image_max_tokens: int | None = None,
    overrides: Mapping[str, Scalar] = MappingProxyType({}),
    lora: str | Path | Iterable[AdapterPath] = (),
) -> Runtime:
    """Return a runtime of a GGUF file, checked and loaded. `core.load`.

    `path` is a file or the name of a model that is here; `model_names` says which one is opened if
    it is None. `device` is as on the command line, `n_ctx` in tokens, `n_batch` in those of a
    prompt that one step reads at most. On the CPU, cached keys and values may be of type f16 or
    q8_0; with `repack_cache`, its form of the weights is kept on disk and mapped the next time.
    `spec` names the drafters (None: every one that the files offer), `draft` is the file of a draft
    model, an MTP head or another network, or several of them, one of each kind (None: networks
    beside the model's file; an empty list: none): none changes the text. `mmproj` is the file with
    the vision tower of a model that has one; an image then takes `image_min_tokens` to
    `image_max_tokens` of the context. `overrides`: values of the file's keys in place of its own.
    `lora`: files of LoRA adapters, each alone or with its scale, a pair.
    """
    vision = check_mmproj(mmproj, image_min_tokens, image_max_tokens)
    drafts = [draft] if isinstance(draft, str | Path) else None if draft is None else list(draft)
    path, spec = find_model(path), spec or BY_DEFAULT
    lora = [lora] if isinstance(lora, str | Path) else list(lora)
    kv_types, start = KvTypes.parse(cache_type_k, cache_type_v), time.perf_counter()
    _check_batch(n_batch)

    def load(backend: Backend) -> Runtime:
        if progress is not None:
            backend.report = progress
        try:
            file = for_context(with_overrides(open_gguf(path), overrides), n_ctx)
            return _load(file, backend, n_ctx, spec, drafts, vision, threads, lora)
        except BaseException:
            backend.close()
            raise

    try:
        runtime = load(_open(device, threads, kv_types, repack_cache=repack_cache))
    except OneIsTooSmallError as error:
        runtime = on_several(error, kv_types, load)
    runtime.n_batch = n_batch
    runtime.stats.load_ms = runtime.load_ms = 1000 * (time.perf_counter() - start)
    return runtime


def _check_batch(n_batch: int | None) -> None:
    if n_batch is not None and n_batch < 1:
        raise ConfigError(f"the batch size must be at least 1, got {n_batch}")


def _open(name: str, threads: int | None, kv_types: KvTypes, *, repack_cache: bool) -> Backend:
    devices = each_device(name)
    if len(devices) == 1:
        return create_backend(name, usable_threads(threads), kv_types, repack_cache=repack_cache)
    if repack_cache:
        raise ConfigError(f"--repack-cache is for --device cpu, not {name}")
    check_devices(devices)
    return open_ranks(devices, kv_types, name)


def _load(
    file: GgufFile,
    backend: Backend,
    n_ctx: int | None,
    spec: SpecOptions,
    drafts: list[str | Path] | None,
    vision: MmprojOptions | None,
    threads: int | None,
    lora: list[AdapterPath],
) -> Runtime:
    check_vocabulary(file)
    adapters = AdapterSet.open(lora, file)
    if adapters is not None and not backend.runs_adapters:
        raise ConfigError(
            f"--device {backend.name} does not run LoRA adapters; use --device cpu, or merge them "
            "into the model"
        )
    encoder = None
    if vision is not None:  # first, so that what is left of the memory is the model's
        from .vision.load_images import load_images

        encoder = load_images(vision, file, backend, threads)
    try:
        runtime = _load_model(file, backend, n_ctx, spec, drafts, adapters)
    except BaseException:
        if encoder is not None:
            encoder.close()
        raise
    if encoder is not None:
        encoder.is_bidirectional = runtime.model.is_bidirectional
    runtime.image_encoder = encoder
    return runtime


def _load_model(
    file: GgufFile,
    backend: Backend,
    n_ctx: int | None,
    spec: SpecOptions,
    drafts: list[str | Path] | None,
    adapters: AdapterSet | None,
) -> Runtime:
    tokenizer = load_tokenizer(file.metadata)
    draft_files = open_drafts(drafts, spec, file)
    with_nextn = not {MTP, AUTO}.isdisjoint(spec.types)
    with_nextn &= all(each.drafter != MTP for each in draft_files)
    first = [each for each in draft_files if spec.draft_first or not each.is_companion]
    reserve = sum(each.file.n_bytes for each in first)
    demands: list[Demand] = []
    model, length = _build(
        file, backend, n_ctx, demands, adapters, with_nextn=with_nextn, reserve=reserve
    )
    target = LoadedModel(file, model, tokenizer)
    used, drafter = load_drafts_beside(draft_files, target, backend, spec, length, demands)

    def runtime_of(n_tokens: int) -> Runtime:
        return Runtime(file, model, backend, tokenizer, n_tokens, spec, drafter, demands)

    try:
        runtime = runtime_of(length)
    except TooLargeError as error:
        if n_ctx is None and first and error.longest >= LEAST_CONTEXT:
            warn_of_shorter_context(error.longest, length)
            runtime = runtime_of(error.longest)
        elif any(each.is_companion for each in used):
            for each in used:
                leave_out(each, error)
            return _load_model(file, backend, n_ctx, spec, [], adapters)
        else:
            raise
    runtime.draft_files = tuple(used)
    if any(each.drafter == EAGLE3 for each in used):
        from .try_drafter import settle_doubts

        settle_doubts(runtime)
    return runtime


def _build(
    file: GgufFile,
    backend: Backend,
    n_ctx: int | None,
    demands: list[Demand],
    adapters: AdapterSet | None,
    *,
    with_nextn: bool,
    reserve: int,
) -> tuple[Model, int]:
    """Return the model and its context length in tokens. `reserve`: bytes for a draft model."""
    if backend.n_ranks > 1:
        assert isinstance(backend, RankedBackend)

        def sizes(model: Model) -> StateSizes:
            return StateSizes(context_length(model, n_ctx))

        model = load_ranked(file, backend, sizes, with_nextn=with_nextn, reserve=reserve)
        return model, context_length(model, n_ctx)

    length = 0

    def check(demand: Demand) -> None:
        nonlocal length
        demands.append(demand)
        others = n_others(backend.name)
        try:
            may_shrink = n_ctx is None and not others
            length = fitting_context(
                file,
                demand,
                backend,
                context_length(demand.model, n_ctx),
                available_beside_drafts(backend, reserve if may_shrink else 0),
                may_shrink=may_shrink,
            )
        except (ModelError, ConfigError) as error:
            if others:
                raise OneIsTooSmallError(error, 1 + others) from None
            raise

    model = build_model(file, backend, check, with_nextn=with_nextn, adapters=adapters)
    return model, length
