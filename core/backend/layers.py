"""What a layer is, in numbers and prepared weights: the nouns of the backend interface.

A model file fills these in once, at load; the ops of `interface.py` read them. `Matrix` and
`Vector` are whatever the backend made of a tensor, and opaque to models.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError
from ..gguf.printable import printable
from ..gguf.reader import Tensor

Matrix = Any  # one or several weight matrices, prepared by `Backend.matrix`
Vector = Any  # a small float32 array, prepared by `Backend.vector`
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """A stored matrix (n_out, n_in), or a stack of experts (n_expert, n_out, n_in)."""

    tensor: Tensor
    bias: Floats | None = None  # (n_out,)
    scale: Floats | None = None  # (1,) or (n_expert,): multiplies the product (NVFP4)
    row_order: NDArray[np.intp] | None = None  # row i of the matrix is row row_order[i] of the file


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm: x / sqrt(mean(x^2) + eps) * weight. The stored weight is the final multiplier."""

    weight: Vector
    eps: float


class RopePairs(Enum):
    """Which two elements of a head turn together."""

    NEIGHBOURS = "norm"  # (x[2i], x[2i + 1]), llama.cpp's NORM
    HALVES = "neox"  # (x[i], x[i + n_rot / 2]), llama.cpp's NEOX


@dataclass(frozen=True, slots=True)
class RotaryPositions:
    """Rotary positions over the first 2 * len(frequencies) elements of a head."""

    pairs: RopePairs
    frequencies: NDArray[np.float64]  # radians per position, scaling already applied
    magnitude: float = 1.0  # multiplies cos and sin (YaRN)


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention of one layer; its input rows are [q | k | v].

    With `gated`, each head of q is [q, gate] and the output is multiplied by sigmoid(gate).
    """

    layer: int  # index among the layers of the state that keep keys and values
    n_heads: int
    n_kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    rope: RotaryPositions | None
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    gated: bool = False
    window: int = 0  # a row sees this many cells, itself included; 0: all
    sinks: Vector | None = None  # (n_heads,) a logit that takes part in the softmax, without value

    @property
    def q_width(self) -> int:
        return self.n_heads * self.key_dim * (2 if self.gated else 1)

    @property
    def k_width(self) -> int:
        return self.n_kv_heads * self.key_dim

    @property
    def v_width(self) -> int:
        return self.n_kv_heads * self.value_dim


class HeadOrder(Enum):
    """Which key head serves value head h of a Gated DeltaNet."""

    GROUPED = "grouped"  # h // (n_value_heads / n_key_heads): qwen3next
    TILED = "tiled"  # h mod n_key_heads: qwen35, as llama.cpp's converter stores it


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """Sizes of a Gated DeltaNet, which are those of its recurrent state."""

    n_key_heads: int
    n_value_heads: int
    head_dim: int  # of keys and values
    kernel: int  # of the convolution

    @property
    def key_width(self) -> int:
        return self.n_key_heads * self.head_dim

    @property
    def value_width(self) -> int:
        return self.n_value_heads * self.head_dim

    @property
    def channels(self) -> int:
        """What goes through the convolution: q, k, v."""
        return 2 * self.key_width + self.value_width

    @property
    def width(self) -> int:
        """Of the op's input rows."""
        return self.channels + self.value_width + 2 * self.n_value_heads


@dataclass(frozen=True, slots=True)
class DeltaRule:
    """Gated DeltaNet of one layer; its input rows are [q | k | v | z | beta | alpha]."""

    layer: int  # index among the recurrent layers of the state
    shape: DeltaShape
    order: HeadOrder
    conv1d: Vector  # (channels, kernel), the last column meets the newest row
    dt_bias: Vector  # (n_value_heads,)
    a: Vector  # (n_value_heads,) = -exp(A_log)
    norm: Norm


class GateActivation(Enum):
    SILU = "silu"
    GELU = "gelu"  # tanh form


class Gating(Enum):
    """How router logits become probabilities (`expert_gating_func`)."""

    SOFTMAX = 1
    SIGMOID = 2
    SOFTMAX_OF_CHOSEN = 3


@dataclass(frozen=True, slots=True)
class SharedExpert:
    gate_up: Matrix
    down: Matrix
    gate_inp: Matrix | None = None  # (1, D): its sigmoid scales the expert's output


@dataclass(frozen=True, slots=True)
class Moe:
    """Mixture of experts: chosen in float32, outputs added by rank."""

    gate_inp: Matrix  # the router (n_expert, D)
    gate_up: Matrix  # stack of (2F, D), gate rows first
    down: Matrix  # stack of (D, F)
    n_used: int
    gating: Gating
    normalise: bool  # chosen probabilities are divided by their sum
    scale: float = 1.0
    probs_bias: Vector | None = None  # added for the choice only
    activation: GateActivation = GateActivation.SILU
    shared: SharedExpert | None = None


class KvType(Enum):
    """How cached keys or values are kept; the names are llama.cpp's."""

    F16 = "f16"
    Q8_0 = "q8_0"  # int8, and one half-float scale for 32 elements of a head


@dataclass(frozen=True, slots=True)
class KvTypes:
    keys: KvType = KvType.F16
    values: KvType = KvType.F16

    @classmethod
    def parse(cls, keys: str, values: str) -> KvTypes:
        """From the values of the command line's flags."""
        for flag, name in (("-k", keys), ("-v", values)):
            if name not in {kind.value for kind in KvType}:
                choice = " or ".join(kind.value for kind in KvType)
                raise ConfigError(
                    f"--cache-type{flag} {printable(name)}: unknown type; choose {choice}"
                )
        return cls(KvType(keys), KvType(values))

    def __str__(self) -> str:
        return f"{self.keys.value} keys, {self.values.value} values"


HALF_FLOATS = KvTypes()


@dataclass(frozen=True, slots=True)
class KvShape:
    """Keys and values of one layer and cell."""

    n_kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class StateShape:
    """All that a model keeps between steps."""

    kv: tuple[KvShape, ...]
    delta: tuple[DeltaShape, ...] = ()

    def followed_by(self, other: StateShape) -> StateShape:
        """With the layers of MTP heads behind its own."""
        return StateShape(self.kv + other.kv, self.delta + other.delta)


@dataclass(frozen=True, slots=True)
class SplitShape(StateShape):
    """Of a model whose layers several ranks hold: all layers, and the rank of each."""

    kv_ranks: tuple[int, ...] = ()
    delta_ranks: tuple[int, ...] = ()

    def of_rank(self, rank: int) -> StateShape:
        kv = [s for s, owner in zip(self.kv, self.kv_ranks, strict=True) if owner == rank]
        delta = [s for s, owner in zip(self.delta, self.delta_ranks, strict=True) if owner == rank]
        return StateShape(tuple(kv), tuple(delta))

    def followed_by(self, other: StateShape) -> SplitShape:
        """Heads belong to rank 0, which has the final rows."""
        return SplitShape(
            self.kv + other.kv,
            self.delta + other.delta,
            self.kv_ranks + (0,) * len(other.kv),
            self.delta_ranks + (0,) * len(other.delta),
        )
