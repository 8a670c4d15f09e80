"""A model of random weights on the device, as engines and as single steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NoReturn, Self

import numpy as np

from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.cuda.device_step import StepKey
from nextn.core.backend.cuda.prompt_parts import PromptSizes
from nextn.core.backend.cuda.runner import CudaRunner
from nextn.core.backend.cuda.step_sizes import filled_up
from nextn.core.backend.interface import HostOutput, StateRoom
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.core.runtime import Runtime
from nextn.core.state.sizes import PAGE_LEN, WINDOW
from nextn.core.tokenizer import load_tokenizer
from nextn.core.warm_up import compile_for_gpus
from nextn.cuda_kernels.device import architecture

from .ledger import Ledger
from .place import Place, Scale
from .plan import Plan
from .random_weights import RandomUploads, fill_with_normal, write_shapes


@dataclass
class Loaded:
    place: Place
    plan: Plan
    runtime: Runtime
    backend: CudaBackend
    seconds: float  # that it took

    @classmethod
    def make(cls, place: Place, plan: Plan, folder: Path) -> Self:
        start = time.perf_counter()
        path = write_shapes(folder / f"{plan.name}.gguf", place.sizes(plan.sizes))
        if not place.is_dry:
            compile_kernels(path, architecture())
        backend = CudaBackend(place.device)
        backend.uploads = RandomUploads(place.device)
        if place.is_dry:  # so that short prompts are some
            backend.machine.prompts = PromptSizes(few=16, calls=(64,), chunk=64)
            backend.prompt_chunk = backend.machine.prompts.chunk
        file = open_gguf(path)
        model = build_model(file, backend)
        runtime = Runtime(file, model, backend, load_tokenizer(file.metadata), place.scale.n_ctx)
        place.device.wait()
        return cls(place, plan, runtime, backend, time.perf_counter() - start)

    @property
    def scale(self) -> Scale:
        return self.place.scale

    @cached_property
    def ledger(self) -> Ledger:
        made = Ledger(self.place.sizes(self.plan.sizes))
        made.device.launcher.n_processors = self.place.device.launcher.n_processors
        return made

    def tokens(self, n: int, seed: int = 0) -> list[int]:
        rng = np.random.default_rng(seed)
        found: list[int] = rng.integers(0, self.runtime.n_vocab - 1, n).tolist()
        return found

    def with_context(self, n_ctx: int) -> Runtime:
        """The same weights for longer texts."""
        r = self.runtime
        return Runtime(r.file, r.model, r.backend, r.tokenizer, n_ctx)


def compile_kernels(path: Path, arch: int) -> None:
    """All that a model launches, several at a time: its steps then find them in the cache."""
    for _ in compile_for_gpus(path, [arch], ("f16", "f16"), lambda _, __: None):
        pass


class Steps:
    """Single steps of sequences whose cache is full of random numbers."""

    def __init__(self, loaded: Loaded, n_ctx: int, n_slots: int = 1, window: int = WINDOW) -> None:
        self.loaded = loaded
        self.pages = -(-(n_ctx + window) // PAGE_LEN)
        backend, model = loaded.backend, loaded.runtime.model
        self.state = backend.new_state(
            model.state_shape,
            StateRoom(
                n_pages=n_slots * self.pages, page_len=PAGE_LEN, n_slots=n_slots, window=window
            ),
        )
        for i, kv in enumerate(self.state.kv):
            for array in (kv.keys, kv.values):
                fill_with_normal(array, i)
        loaded.place.device.launcher.begin_after_all()
        self._run = CudaRunner(backend.machine, model.forward, self.state, frozenset())
        self._tokens = loaded.tokens(n_slots * window)

    def step(self, n_rows: int, past: int, n_sequences: int = 1) -> Step:
        """As verifying has it: all rows have logits, and those of the step before held."""
        pieces = [self.piece(self._tokens[:n_rows], past, b) for b in range(n_sequences)]
        return build_step(pieces)

    def piece(self, tokens: Sequence[int], past: int, b: int = 0, replay: int = -1) -> StepPart:
        n = len(tokens)
        pages = range(b * self.pages, (b + 1) * self.pages)
        return StepPart(tokens, past, pages, b, n if replay < 0 else replay, n_out=n)

    def run(self, step: Step) -> HostOutput:
        return self._run(step)

    def again(self, step: Step) -> Callable[[], object]:
        """The step alone, as a graph if it is one: nothing is sent, and nobody waits."""
        for _ in range(2):  # as it comes, then repeatable
            self.run(step)
        window = self.state.window
        filled = filled_up(step, window)
        return self._run._graphs.of(StepKey.of(filled, window), _never).run

    def ms(self, step: Step) -> float:
        """Of one, of several that follow each other without waiting for the host."""
        times, one = self.loaded.scale.repeats, self.again(step)

        def many() -> None:
            for _ in range(times):
                one()

        return 1e3 * self.loaded.place.seconds(many) / times


def _never() -> NoReturn:
    raise AssertionError("a step that has just been run is known")
