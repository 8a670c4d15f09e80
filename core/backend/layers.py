"""What a layer is, in numbers and prepared weights: the nouns of the backend interface.

A model file fills these in once, at load; the ops of `interface.py` read them. `Matrix` and
`Vector` are whatever the backend made of a tensor, and opaque to models.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Self

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from ..errors import ConfigError
from ..gguf.printable import printable
from ..gguf.quants import find_format
from ..gguf.reader import Tensor
from .low_rank import LowRank

Matrix = Any  # one or several weight matrices, prepared by `Backend.matrix`
Vector = Any  # a small float32 array, prepared by `Backend.vector`
Floats = NDArray[np.float32]


class MatrixPart(Struct, frozen=True):
    """A stored matrix (n_out, n_in), or a stack of experts (n_expert, n_out, n_in)."""

    tensor: Tensor
    bias: Floats | None = None  # (n_out,) or (n_expert, n_out)
    scale: Floats | None = None  # (1,) or (n_expert,): multiplies the product (NVFP4)
    row_order: NDArray[np.intp] | None = None  # row i of the matrix is row row_order[i] of the file
    low_rank: LowRank | None = None  # its b has the rows of the file as well


def float_part(name: str, values: Floats) -> MatrixPart:
    data = np.ascontiguousarray(values, np.float32).view(np.uint8).reshape(-1)
    return MatrixPart(Tensor(name, values.shape, find_format("F32"), data))


class Norm(Struct, frozen=True):
    """RMS norm: x / sqrt(mean(x^2) + eps) * weight. The stored weight is the final multiplier.

    `centred`: LayerNorm, which subtracts the mean of x first, and adds `bias` at the end.
    """

    weight: Vector
    eps: float
    centred: bool = False
    bias: Vector | None = None


class RopePairs(Enum):
    """Which two elements of a head turn together."""

    NEIGHBOURS = "norm"  # (x[2i], x[2i + 1]), llama.cpp's NORM
    HALVES = "neox"  # (x[i], x[i + n_rot / 2]), llama.cpp's NEOX


class RotaryPositions(Struct, frozen=True):
    """Rotary positions over the first 2 * len(frequencies) elements of a head."""

    pairs: RopePairs
    frequencies: NDArray[np.float64]  # radians per position, scaling already applied
    magnitude: float = 1.0  # multiplies cos and sin (YaRN)
    # Which of a row's positions in `Step.axes` each pair turns by; None: all by the first.
    axes: NDArray[np.int64] | None = None

    def angles(self, positions: NDArray[Any], axes: NDArray[Any] | None) -> NDArray[np.float64]:
        """Of each row and pair. In float64: at position 10^5 float32 is 0.004 off."""
        if axes is None or self.axes is None:
            made: NDArray[np.float64] = positions[:, None] * self.frequencies
            return made
        return axes[:, self.axes] * self.frequencies


class QueryGrowth(Struct, frozen=True):
    """Queries far behind the context that a model was trained on are longer."""

    factor: float
    trained: int  # positions
    ahead: int = 0  # positions by which a query counts as further on

    def at(self, positions: NDArray[Any]) -> NDArray[np.float64]:
        """What queries of these positions are multiplied by."""
        grown: NDArray[np.float64] = np.log(1 + (positions + self.ahead) // self.trained)
        return 1 + self.factor * grown


class KvSource(Enum):
    """Where keys and values of an attention layer come from, and so what its input rows hold."""

    ROWS = "rows"  # [q | k | v]
    KEYS = "keys"  # [q | k]: the value is k before its norm and rope
    SHARED = "shared"  # [q]: an earlier layer has put them into the cells of `layer`


class Attention(Struct, frozen=True):
    """Attention of one layer; its input rows are [q | k | v], see `KvSource`.

    With `gated`, each head of q is [q, gate] and the output is multiplied by sigmoid(gate). With
    `head_gates`, one gate for each head follows behind all else in the rows.
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
    # Windows do not slide: they begin at multiples of their size, and a row sees those of its own.
    chunked: bool = False
    hides_first: bool = False  # cell 0 is seen by its own row alone
    causal: bool = True  # False: a row also sees the later rows of its sequence in the step
    bidirectional: bool = False  # a row of an image also sees its later ones, see `Step.ahead`
    sinks: Vector | None = None  # (n_heads,) a logit that takes part in the softmax, without value
    v_norm: Norm | None = None
    head_gates: bool = False
    cap: float = 0.0  # scores become cap * tanh(score / cap); 0: they stay
    value_scale: float = 1.0  # multiplies the output
    source: KvSource = KvSource.ROWS
    norms_turned: bool = False  # q and k are turned first, and normed then
    growth: QueryGrowth | None = None  # with rope over whole heads, or none

    @property
    def q_width(self) -> int:
        return self.n_heads * self.key_dim * (2 if self.gated else 1)

    @property
    def k_width(self) -> int:
        """Of the rows' keys."""
        return 0 if self.source is KvSource.SHARED else self.n_kv_heads * self.key_dim

    @property
    def v_width(self) -> int:
        """Of the rows' values."""
        return self.n_kv_heads * self.value_dim if self.source is KvSource.ROWS else 0

    @property
    def width(self) -> int:
        """Of the op's input rows."""
        gates = self.n_heads if self.head_gates else 0
        return self.q_width + self.k_width + self.v_width + gates


class LatentAttention(Struct, frozen=True):
    """Multi-head latent attention (MLA) with absorbed matrices: all heads share one cell.

    A cell is [latent | rotated key]; its first `latent` numbers are its value too, so it is kept
    once. Head h of q is [plain | rotated]; k_b takes the plain part to the latent's width, and
    v_b takes the weighted sum of latents to the head's output.
    """

    layer: int  # index among the layers of the state that keep keys and values
    n_heads: int
    latent: int
    plain_dim: int
    rope_dim: int
    value_dim: int  # of a head's output
    scale: float
    rope: RotaryPositions
    latent_norm: Norm
    k_b: Matrix  # stack of (latent, plain_dim), one for each head
    v_b: Matrix  # stack of (value_dim, latent)
    hides_first: bool = False  # cell 0 is seen by its own row alone

    @property
    def q_width(self) -> int:
        return self.n_heads * (self.plain_dim + self.rope_dim)

    @property
    def cell_width(self) -> int:
        """Of a cell, and of the rows that become cells."""
        return self.latent + self.rope_dim


class HeadOrder(Enum):
    """Which key head serves value head h of a Gated DeltaNet."""

    GROUPED = "grouped"  # h // (n_value_heads / n_key_heads): qwen3next
    TILED = "tiled"  # h mod n_key_heads: qwen35, as llama.cpp's converter stores it


class RecurrentShape(Struct, frozen=True):
    """Sizes of a recurrent layer's state, and of the factors that a row leaves.

    A value head has a state S (value_dim, key_dim). A row moves it on to g S + u k^T, by a decay g
    and an update u of its own and the key k of a key head; (k, u, g) are its factors. Before that,
    a convolution over the last `kernel` rows goes through all channels.
    """

    n_key_heads: int
    n_value_heads: int
    key_dim: int
    value_dim: int
    kernel: int  # of the convolution
    channels: int
    decay_dim: int = 1  # numbers of a decay: 1, or one for each of a key's

    @classmethod
    def of_heads(
        cls,
        n_key_heads: int,
        n_value_heads: int,
        key_dim: int,
        value_dim: int,
        kernel: int,
        decay_dim: int = 1,
    ) -> RecurrentShape:
        """Whose queries, keys and values are the channels."""
        channels = 2 * n_key_heads * key_dim + n_value_heads * value_dim
        heads = n_key_heads, n_value_heads, key_dim, value_dim
        return RecurrentShape(*heads, kernel, channels, decay_dim)

    @classmethod
    def of_convolution(cls, channels: int, kernel: int) -> RecurrentShape:
        """A convolution alone."""
        return RecurrentShape(0, 0, 0, 0, kernel, channels)

    @property
    def key_width(self) -> int:
        return self.n_key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        return self.n_value_heads * self.value_dim

    @property
    def state_width(self) -> int:
        """Numbers of S in all heads."""
        return self.value_width * self.key_dim

    @property
    def factor_width(self) -> int:
        """Numbers that a row leaves beside the inputs of its convolution."""
        return self.key_width + self.value_width + self.n_value_heads * self.decay_dim


class DeltaRule(Struct, frozen=True):
    """Gated DeltaNet of one layer; its input rows are [q | k | v | z | beta | alpha].

    Keys and values have the same size. u = beta (v - g S k).
    """

    layer: int  # index among the recurrent layers of the state
    shape: RecurrentShape
    order: HeadOrder
    conv1d: Vector  # (channels, kernel), the last column meets the newest row
    dt_bias: Vector  # (n_value_heads,)
    a: Vector  # (n_value_heads,) = -exp(A_log)
    norm: Norm

    @property
    def width(self) -> int:
        """Of the op's input rows."""
        s = self.shape
        return s.channels + s.value_width + 2 * s.n_value_heads


class ChannelDelta(Struct, frozen=True):
    """Kimi's delta attention (KDA): the delta rule with a decay for each number of a key.

    Its input rows are [q | k | v | beta], with decays and gates in rows of their own. A decay is
    exp(a softplus(row + dt_bias)); what comes out is multiplied by the sigmoid of the gates.
    """

    layer: int  # index among the recurrent layers of the state
    shape: RecurrentShape
    conv1d: Vector  # (channels, kernel), the last column meets the newest row
    dt_bias: Vector  # (n_value_heads * key_dim,)
    a: Vector  # (n_value_heads,) = -exp(A_log)
    norm: Norm
    unit_eps: float  # of the lengths of queries and keys

    @property
    def width(self) -> int:
        """Of the op's input rows."""
        return self.shape.channels + self.shape.n_value_heads


class StateSpace(Struct, frozen=True):
    """Mamba-2 (SSD) of one layer; its input rows are [z | x | B | C | dt].

    Values are x, keys B and queries C, each pair shared by neighbouring heads. A row waits
    t = softplus(dt + dt_bias): g = exp(t a), u = t x, and out comes S C + d x, times silu(z), then
    normed in as many slices as there are key heads.
    """

    layer: int  # index among the recurrent layers of the state
    shape: RecurrentShape
    conv1d: Vector  # (channels, kernel) of [x | B | C], the last column meets the newest row
    conv_bias: Vector  # (channels,)
    dt_bias: Vector  # (n_value_heads,)
    a: Vector  # (n_value_heads,) = -exp(A_log)
    d: Vector  # (n_value_heads,)
    norm: Norm | None  # of all values

    @property
    def width(self) -> int:
        """Of the op's input rows."""
        return self.shape.channels + self.shape.value_width + self.shape.n_value_heads


class ShortConvolution(Struct, frozen=True):
    """The mixer of LFM2: rows [b | c | x] become c * convolution(b * x)."""

    layer: int  # index among the recurrent layers of the state
    shape: RecurrentShape  # of a convolution alone
    weight: Vector  # (channels, kernel), the last column meets the newest row


class GateActivation(Enum):
    SILU = "silu"
    GELU = "gelu"  # tanh form
    OAI = "swiglu-oai"  # gate * sigmoid(1.702 gate), which meets up + 1: gpt-oss


OAI_SLOPE = 1.702


class PlainActivation(Enum):
    """Of a feed-forward layer without gates."""

    GELU_TANH = "gelu"
    GELU_ERF = "gelu-erf"  # the exact one
    GELU_QUICK = "gelu-quick"  # x * sigmoid(1.702 x)
    RELU_SQUARED = "relu-squared"


QUICK_GELU_SLOPE = 1.702


class Gate(Struct, frozen=True):
    """How the gate and up rows of a feed-forward layer become one: activation(gate) * up."""

    activation: GateActivation = GateActivation.SILU
    # 0: none. Else activation(gate) is this at most, and up is between -limit and limit. With OAI,
    # gate itself is this at most, and 1 is added to up afterwards.
    limit: float = 0.0


SILU_GATE = Gate()
GELU_GATE = Gate(GateActivation.GELU)


class DynamicConvolution(Struct, frozen=True):
    """Over the rows of a sequence within a step, by weights that each row brings for itself.

    y[t, c] = sum over k of (base[k, c] + factors[t, first + k * groups + c // group]) * x[t - k, c]
    where `group` channels share a factor and rows before the first are zeros.
    """

    kernel: int  # taps
    group: int
    base: Vector  # (kernel, width)
    first: int = 0  # column of the factors' rows


class Gating(Enum):
    """How router logits become probabilities (`expert_gating_func`, as far as `LAST_IN_FILES`)."""

    SOFTMAX = 1
    SIGMOID = 2
    SOFTMAX_OF_CHOSEN = 3
    SIGMOID_OF_CHOSEN = 4  # llama4, whose files do not say so


LAST_IN_FILES = Gating.SOFTMAX_OF_CHOSEN


class SharedExpert(Struct, frozen=True):
    gate_up: Matrix
    down: Matrix
    gate_inp: Matrix | None = None  # (1, D): its sigmoid scales the expert's output
    gate: Gate = SILU_GATE


class Moe(Struct, frozen=True):
    """Mixture of experts: chosen in float32, outputs added by rank."""

    gate_inp: Matrix  # the router (n_expert, D)
    gate_up: Matrix  # stack of (2F, D), gate rows first
    down: Matrix  # stack of (D, F)
    n_used: int
    gating: Gating
    normalise: bool  # chosen probabilities are divided by their sum
    scale: float = 1.0
    probs_bias: Vector | None = None  # added for the choice only
    gate: Gate = SILU_GATE
    shared: SharedExpert | None = None
    # Experts lie in groups of equal size. A group scores the sum of its two best experts; of the
    # others than the best `n_groups_used` none is chosen.
    n_groups: int = 1
    n_groups_used: int = 1
    expert_scale: Vector | None = None  # (n_expert,) multiplies the weight of a chosen expert
    # Weights multiply what experts read, not what comes of it. Experts have no biases then, and the
    # shared one no gate.
    weighs_inputs: bool = False
    # Experts without gates: `gate_up` is the up rows alone, and this is what they go through. There
    # is no shared expert then.
    activation: PlainActivation | None = None


class KvType(Enum):
    """How cached keys or values are kept; the names are llama.cpp's."""

    F16 = "f16"
    Q8_0 = "q8_0"  # int8, and one half-float scale for 32 elements of a head


class KvTypes(Struct, frozen=True):
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


class KvShape(Struct, frozen=True):
    """Keys and values of one layer and cell."""

    n_kv_heads: int
    key_dim: int
    value_dim: int  # 0: values are the beginning of the keys (MLA)
    window: int = 0  # of the layer's attention


class StateShape(Struct, frozen=True):
    """All that a model keeps between steps."""

    kv: tuple[KvShape, ...]
    recurrent: tuple[RecurrentShape, ...] = ()

    @property
    def window(self) -> int:
        """The largest of all windowed layers; 0: there are none."""
        return max((s.window for s in self.kv), default=0)

    def windowed_layers(self) -> StateShape:
        """Only the layers of which a row sees a window of cells."""
        return StateShape(tuple(s for s in self.kv if s.window))

    def without_windows(self) -> Self:
        """Windowed layers keep all cells, like the others."""
        return replace(self, kv=tuple(replace(s, window=0) for s in self.kv))

    def followed_by(self, other: StateShape) -> StateShape:
        """With the layers of MTP heads behind its own."""
        return StateShape(self.kv + other.kv, self.recurrent + other.recurrent)


class SplitShape(StateShape, frozen=True):
    """Of a model whose layers several ranks hold: all layers, and the rank of each."""

    kv_ranks: tuple[int, ...] = ()
    recurrent_ranks: tuple[int, ...] = ()

    def of_rank(self, rank: int) -> StateShape:
        def own(shapes: Sequence[Any], ranks: Sequence[int]) -> tuple[Any, ...]:
            return tuple(s for s, owner in zip(shapes, ranks, strict=True) if owner == rank)

        return StateShape(own(self.kv, self.kv_ranks), own(self.recurrent, self.recurrent_ranks))

    def followed_by(self, other: StateShape) -> SplitShape:
        """Heads belong to rank 0, which has the final rows."""
        return SplitShape(
            self.kv + other.kv,
            self.recurrent + other.recurrent,
            self.kv_ranks + (0,) * len(other.kv),
            self.recurrent_ranks + (0,) * len(other.recurrent),
        )
