"""Operations of a backend alone: rows in, rows out, whatever models are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nextn.core.backend import create_backend
from nextn.core.backend.cuda.prompt_parts import PromptSizes
from nextn.core.backend.interface import Backend, Ops, Output, Rows, State, StateRoom, Taps
from nextn.core.backend.layers import Floats, KvTypes, MatrixPart, StateShape
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor

from .blocks import identity, random_blocks

PAGE_LEN = 16
PAGES = [2, 0, 3, 5, 1]
PROMPTS = PromptSizes(few=8, calls=(64, 128), chunk=128)  # short prompts are prompts already


@dataclass
class Bench:
    """A backend, and random weights that are the same for all backends."""

    device: str
    backend: Backend = field(init=False)
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.backend, self.rng = make_backend(self.device), np.random.default_rng(3)

    def vector(self, width: int) -> Any:
        return self.backend.vector(self.rng.uniform(0.5, 1.5, width).astype(np.float32))

    def part(self, *shape: int, kind: str = "F32", name: str = "t") -> MatrixPart:
        """Of deviation 1 / sqrt(inputs) if it is plain."""
        if kind in ("F32", "F16"):
            values = self.rng.standard_normal(shape) * shape[-1] ** -0.5
            data = values.astype({"F32": np.float32, "F16": np.float16}[kind]).view(np.uint8)
        else:
            seed = int(self.rng.integers(99))
            data = random_blocks(kind, int(np.prod(shape[:-1])), shape[-1], seed)
        return MatrixPart(Tensor(name, shape, find_format(kind), data.reshape(-1)))

    def matrix(self, *shape: int, kind: str = "F32", name: str = "t") -> Any:
        return self.backend.matrix([self.part(*shape, kind=kind, name=name)])

    def given(self, values: Floats) -> Any:
        data = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
        return self.backend.matrix(
            [MatrixPart(Tensor("t", values.shape, find_format("F32"), data))]
        )

    def identity(self, width: int) -> Any:
        return self.backend.matrix([MatrixPart(identity(width))])


def make_backend(device: str) -> Backend:
    """`device` may name a type of the cache, too: "cuda q8_0"."""
    device, _, kind = device.partition(" ")
    return create_backend(device, None, KvTypes.parse(kind or "f16", kind or "f16"))


Body = Callable[[Ops, Step, State], Rows]


class OpsAlone:
    """`body` run on rows of one sequence, which come as hidden rows."""

    def __init__(self, bench: Bench, body: Body, shape: StateShape | None = None) -> None:
        self.backend = bench.backend
        self.state = self.backend.new_state(
            shape or StateShape(()), StateRoom(n_pages=6, page_len=PAGE_LEN, n_slots=1, window=8)
        )

        def forward(ops: Ops, step: Step, state: State, taps: Taps) -> Output:
            return Output(body(ops, step, state))

        self.run = self.backend.compile_rows(forward, self.state, max_rows=256)

    def __call__(
        self, rows: Floats, lengths: Sequence[int], past: int = 0, pages: Sequence[int] = PAGES
    ) -> Floats:
        """As steps of these lengths, from cell `past` on; row i is that of cell i."""
        out = []
        for n in lengths:
            piece = StepPart([0] * n, past, pages, n_out=n)
            made = self.run(build_step([piece], rows[past : past + n])).logits
            out.append(np.array(self.backend.ops.to_host(made)))
            past += n
        return np.concatenate(out)


def relative_error(found: Floats, expected: Floats) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
