"""What the engine knows of a model, and the decoder that all text models are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ..backend.interface import Output, Taps
from .layout import Layout
from .mtp import H_NEXTN, MtpHead

if TYPE_CHECKING:
    from ..backend.interface import Backend, Packed, Rows, State
    from ..backend.layers import StateShape
    from ..backend.step import Step
    from .hparams import Hparams
    from .weights import Weights


def block_input(block: int) -> str:
    """Tap: the residual stream that enters a block; EAGLE3 and DFlash ask for some of these."""
    return f"blk.{block}.input"


class Block(Protocol):
    def __call__(self, ops: Backend, x: Rows, step: Step, state: State) -> Rows: ...


class Ffn(Protocol):
    def __call__(self, ops: Backend, a: Packed, x: Rows) -> Rows: ...


BlockBuilder = Callable[["Weights", Layout], Block]


class Model(ABC):
    """A target. `blk`, `output_norm` and so on are the tensors of the file, under their names."""

    def __init__(self, hparams: Hparams, weights: Weights, *, with_nextn: bool = True) -> None:
        """`with_nextn`: with the MTP heads that the file holds. Their keys and values lie behind
        those of the trunk, in the same pages."""
        h = self.hparams = hparams
        layout = Layout()
        build = self.block_builder(weights)
        self.token_embd = weights.matrix(h.n_embd, {"token_embd": h.n_vocab})
        self.blk = []
        for layout.block in range(h.n_layers):
            self.blk.append(build(weights.scope(f"blk.{layout.block}"), layout))
        self.output_norm = weights.norm("output_norm", h.n_embd, h.eps)
        self.output = self.token_embd
        self.output_at = weights.file, "token_embd"  # whose rows the head's are
        if weights.has("output"):
            self.output = weights.matrix(h.n_embd, {"output": h.n_vocab})
            self.output_at = weights.file, "output"
        self.nextn = self._nextn(weights, build, layout, is_wanted=with_nextn)
        self.state_shape = layout.shape()

    @abstractmethod
    def block_builder(self, weights: Weights) -> BlockBuilder:
        """How this architecture makes one block; MTP blocks are made by the same function."""

    def forward(self, ops: Backend, step: Step, state: State, wanted: Taps = frozenset()) -> Output:
        taps: dict[str, Rows] = {}
        x = ops.embed(self.token_embd, step)  # (T, D)
        for i, block in enumerate(self.blk):
            if block_input(i) in wanted:
                taps[block_input(i)] = ops.keep(x)
            x = block(ops, x, step, state)
        if H_NEXTN in wanted:
            taps[H_NEXTN] = ops.norm_rows(x, self.output_norm)
        last = ops.norm(ops.out_rows(x, step), self.output_norm)
        return Output(ops.head(last, self.output), taps)

    @classmethod
    def heads_over(
        cls, trunk: Model, hparams: Hparams, weights: Weights
    ) -> tuple[list[MtpHead], StateShape]:
        """MTP heads out of a file of their own, and the state of the trunk with theirs behind it.

        Tensors of the trunk that the file brings along are theirs; they share all others.
        """
        h, shell = hparams, cls.__new__(cls)
        shell.hparams = h
        shell.token_embd, shell.output = trunk.token_embd, trunk.output
        shell.output_norm, shell.output_at = trunk.output_norm, trunk.output_at
        if weights.has("token_embd"):
            shell.token_embd = weights.matrix(h.n_embd, {"token_embd": h.n_vocab})
        if weights.has("output"):
            shell.output = weights.matrix(h.n_embd, {"output": h.n_vocab})
            shell.output_at = weights.file, "output"
        if weights.has("output_norm"):
            shell.output_norm = weights.norm("output_norm", h.n_embd, h.eps)
        shape = trunk.state_shape
        layout = Layout(kv=list(shape.kv), delta=list(shape.delta))
        build = shell.block_builder(weights)
        return shell._nextn(weights, build, layout, is_wanted=True), layout.shape()

    def _nextn(
        self, weights: Weights, build: BlockBuilder, layout: Layout, *, is_wanted: bool
    ) -> list[MtpHead]:
        """The MTP heads that the file holds; a trunk-only file may keep the key and have none."""
        h = self.hparams
        names = [f"blk.{h.n_layers + i}" for i in range(h.n_nextn)]
        if not any(name.startswith(tuple(f"{n}." for n in names)) for name in weights.file.tensors):
            return []
        if not is_wanted:
            for name in names:
                weights.leave_out(f"{name}.")
            return []
        heads = []
        for i, name in enumerate(names):
            layout.block = h.n_layers + i
            heads.append(MtpHead(self, weights.scope(name), build(weights.scope(name), layout)))
        return heads
