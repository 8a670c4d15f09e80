"""A model as the engine sees it: the decoder that all text models are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from ..backend.interface import Output, Relayed, Taps
from .block import BlockBuilder
from .drafters.mtp_network import H_NEXTN, MtpHead, hidden_rows
from .layout import Layout
from .rope import rope_axes

if TYPE_CHECKING:
    from ..backend.interface import Forward, Ops, Rows, State
    from ..backend.layers import Matrix, Norm
    from ..backend.step import Step
    from ..gguf.reader import GgufFile
    from .adapters import AdapterSet
    from .drafters.network import DraftNetwork
    from .hparams import Hparams
    from .model_weights import Weights


def block_input(block: int) -> str:
    """Tap: the residual stream that enters a block; behind the last block, what it leaves."""
    return f"blk.{block}.input"


def check_taps(wanted: Taps, known: Iterable[str]) -> None:
    """A ValueError names the first tap that does not exist."""
    for name in sorted(wanted - set(known)):
        raise ValueError(f"there is no tap {name!r} here")


MTP = "mtp"  # the drafter whose networks are the heads of a file's `nextn` tensors
_NONE: Taps = frozenset()


class Share(Struct, frozen=True):
    """What one of several ranks holds of a model."""

    blocks: range
    has_ends: bool  # the embedding, the last norm, the head and MTP heads


ENDS = Share(range(0), has_ends=True)


class Model(ABC):
    """A target. `blk`, `output_norm` and so on are the tensors of the file, under their names."""

    layout: Layout
    token_embd: Matrix
    output_norm: Norm
    output: Matrix
    output_at: tuple[GgufFile, str]  # the file and tensor of the head's rows
    # Whether MTP heads continue from rows behind the last norm, or from those before it.
    norms_hidden: ClassVar[bool] = True
    is_bidirectional: bool = False  # in some layers, rows of an image see each other
    head_norm_centred: ClassVar[bool] = False  # the last norm of MTP heads is a LayerNorm
    logit_cap: float  # see `Ops.head`
    adapters: AdapterSet | None = None  # LoRA adapters, whose scales each sequence has

    def __init__(
        self,
        hparams: Hparams,
        weights: Weights,
        *,
        with_nextn: bool = True,
        share: Share | None = None,
        trunk: Model | None = None,
    ) -> None:
        """`with_nextn`: with the MTP heads that the file holds. Their keys and values lie behind
        those of the trunk, in the same pages. `share`: of all blocks, only these. `trunk`: of a
        file that has no blocks but those of MTP heads, whose ends they share where it has none."""
        h = self.hparams = hparams
        self.share = share or Share(range(h.n_layers), has_ends=True)
        # Whether rows of images turn by their height and width as well.
        self.has_axes = rope_axes(weights.file.metadata, h.key_dim // 2) is not None
        layout = self.layout = Layout() if trunk is None else trunk.layout.copy()
        build = self.block_builder(weights)
        if self.share.has_ends:
            self._add_beginning(weights, trunk)
        self.blk = []  # those of the share
        for layout.block in self.share.blocks:
            self.blk.append(build(weights.scope(f"blk.{layout.block}"), layout))
        self.drafters: dict[str, Sequence[DraftNetwork]] = {}  # by the drafter's name
        if self.share.has_ends:
            self._add_end(weights, trunk)
            heads = self._nextn(weights, build, layout, is_wanted=with_nextn)
            if heads:
                self.drafters[MTP] = heads
        self.state_shape = layout.shape()

    @property
    def nextn(self) -> Sequence[DraftNetwork]:
        """The MTP heads."""
        return self.drafters.get(MTP, [])

    @property
    def taps(self) -> frozenset[str]:
        """Names of the hidden rows that `forward` can leave."""
        n = self.hparams.n_layers
        return frozenset({H_NEXTN, *(block_input(i) for i in range(n + 1))})

    def _add_beginning(self, weights: Weights, trunk: Model | None) -> None:
        if trunk is not None and not weights.has("token_embd"):
            self.token_embd = trunk.token_embd
            return
        h = self.hparams
        self.token_embd = weights.matrix(h.n_embd, {"token_embd": h.n_vocab})

    def _add_end(self, weights: Weights, trunk: Model | None) -> None:
        h = self.hparams
        if trunk is not None and not weights.has("output_norm"):
            self.output_norm = trunk.output_norm
        else:
            self.output_norm = self.end_norm(weights)
        self.logit_cap = weights.file.metadata.float("final_logit_softcapping", 0.0, low=0.0)
        if weights.has("output"):
            self.output = weights.matrix(h.n_embd, {"output": h.n_vocab})
            self.output_at = weights.file, "output"
        elif trunk is not None:
            self.output, self.output_at = trunk.output, trunk.output_at
        else:
            self.output, self.output_at = self.token_embd, (weights.file, "token_embd")

    @classmethod
    def for_context(cls, file: GgufFile, n_ctx: int) -> GgufFile:
        """The file as this architecture reads it where a context of so many tokens is asked for."""
        return file

    def end_norm(self, weights: Weights) -> Norm:
        """The norm before the head, with all that scales logits."""
        return weights.norm("output_norm", self.hparams.n_embd, self.hparams.eps)

    @property
    def embedding_scale(self) -> float:
        """What the rows of the embedding are multiplied by."""
        return 1.0

    @abstractmethod
    def block_builder(self, weights: Weights) -> BlockBuilder:
        """How this architecture makes one block; MTP blocks are made by the same function."""

    @property
    def forward(self) -> Forward:
        """The whole pass; around the layers of other ranks if there are any."""
        if len(self.share.blocks) == self.hparams.n_layers:
            return self._forward
        return Relayed(self._before, self._after)

    def _forward(self, ops: Ops, step: Step, state: State, wanted: Taps = _NONE) -> Output:
        check_taps(wanted, self.taps)
        return self._end(ops, self._before(ops, step, state, wanted), step, wanted)

    def _before(self, ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
        """Up to the rows (T, D) that the last block leaves, or that leave for another rank."""
        x = ops.embed(self.token_embd, step, self.embedding_scale)
        return self._through(ops, x, step, state, wanted)

    def pass_on(self, ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
        """The blocks of another rank: `step.received` comes in, rows go out."""
        x = ops.given_rows(step, self.hparams.n_embd)
        return self._through(ops, x, step, state, wanted)

    def _after(self, ops: Ops, step: Step, state: State, wanted: Taps) -> Output:
        rows = ops.given_rows(step, self.hparams.n_embd)
        return self._end(ops, Output(rows), step, wanted)

    def _through(
        self, ops: Ops, x: Rows, step: Step, state: State, wanted: Taps, *more: Any
    ) -> Output:
        """`more`: what else this architecture's blocks read."""
        taps: dict[str, Rows] = {}
        for i, block in zip(self.share.blocks, self.blk, strict=True):
            if block_input(i) in wanted:
                taps[block_input(i)] = self.tap(ops, x)
            x = block(ops, x, step, state, *more)
            if i < self.hparams.n_deepstack:
                x = ops.add_embedded(x, step, (1 + i) * self.hparams.n_embd)
        after_last = block_input(self.hparams.n_layers)
        if after_last in wanted and self.share.blocks.stop == self.hparams.n_layers:
            taps[after_last] = self.tap(ops, x)
        return Output(x, taps)

    def tap(self, ops: Ops, x: Rows) -> Rows:
        """A copy of the residual stream."""
        return ops.keep(x)

    def _end(self, ops: Ops, passed: Output, step: Step, wanted: Taps) -> Output:
        x, taps = passed.logits, passed.taps
        if H_NEXTN in wanted:
            taps[H_NEXTN] = hidden_rows(ops, x, self.output_norm if self.norms_hidden else None)
        last = ops.norm(ops.out_rows(x, step), self.output_norm)
        return Output(ops.head(last, self.output, self.logit_cap), taps)

    def add_drafter(self, name: str, networks: Sequence[DraftNetwork], layout: Layout) -> None:
        """From now on states have room for the drafter's keys and values as well, in the pages of
        the trunk's. `layout`: a copy of this model's, with the layers of `networks` added."""
        self.state_shape = self.state_shape.followed_by(layout.behind(self.layout))
        self.drafters[name], self.layout = networks, layout

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
