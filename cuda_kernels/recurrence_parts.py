"""Recurrences that have no fused kernel, in parts (`recurrence_parts.cu`): Mamba-2, Kimi's delta
attention and convolutions alone."""

from __future__ import annotations

from dataclasses import dataclass

from .gdn_layout import GdnSequences, GdnState
from .kernel import Array, Kernel, Launcher, Source
from .shapes import matrix_shape, require_shape
from .state_layout import StateLayout

THREADS, SCAN_WARPS, FINISH_THREADS = 256, 4, 128
MOST_KEY_VALUES = 256  # of a key
SOURCE = Source("recurrence_parts.cu")


def _kernel(name: str, reference: str, threads: int = THREADS, shared: int = 0) -> Kernel:
    return Kernel(name, SOURCE, reference, threads, registers=128, shared=shared)


PRODUCTS = _kernel("recurrence_products", "short_convolution: b * x")
CONVOLVE = _kernel("recurrence_convolve", "convolved")
SCAN = _kernel("recurrence_scan", "state_space", 32 * SCAN_WARPS)
SCAN_DELTA = _kernel("recurrence_scan_delta", "channel_delta", 32 * SCAN_WARPS)
FINISH = _kernel("recurrence_finish", "normed", FINISH_THREADS, shared=64)
KEEP = _kernel("recurrence_keep", "RunningState.advance: inputs")
KERNELS = (PRODUCTS, CONVOLVE, SCAN, SCAN_DELTA, FINISH, KEEP)


@dataclass(frozen=True, slots=True)
class Columns:
    """Neighbouring columns of rows (T, any), float32."""

    rows: Array
    first: int = 0

    def check(self, name: str, width: int) -> tuple[int, int]:
        """Rows and their stride."""
        n_rows, stride = matrix_shape(name, self.rows)
        if not 0 <= self.first <= stride - width:
            raise ValueError(f"{name}: columns {self.first} and {width} more of rows of {stride}")
        return n_rows, stride


@dataclass(frozen=True, slots=True)
class LayerStep:
    """A recurrent layer in a step."""

    layout: StateLayout
    state: GdnState
    sequences: GdnSequences


@dataclass(frozen=True, slots=True)
class Convolution:
    weights: Array  # (channels, kernel), the last one meets the newest row
    bias: Array | None = None
    activated: bool = False  # silu follows


@dataclass(frozen=True, slots=True)
class ScanWeights:
    """`a`, `d`: (value heads,). `dt_bias`: of each value head, or of each number of its keys."""

    dt_bias: Array
    a: Array
    d: Array | None = None  # Mamba-2's
    eps: float = 0.0  # of the lengths of queries and keys


def products(launcher: Launcher, rows: Array, out: Array) -> None:
    """Rows [b | c | x] to b * x (T, channels)."""
    n_rows, channels = matrix_shape("out", out)
    require_shape("rows", rows, (n_rows, 3 * channels))
    launcher.launch(
        PRODUCTS, (-(-channels // THREADS), n_rows), [rows, 3 * channels, channels, out]
    )


def convolve(
    launcher: Launcher,
    at: LayerStep,
    inputs: Columns,
    convolution: Convolution,
    out: Array,
    gates: Columns | None = None,
) -> None:
    """`out` (T, channels): the convolution of the inputs, then silu, then times the gates."""
    layout, ring, c = at.layout, at.state.ring, convolution
    n_rows, stride = inputs.check("inputs", layout.channels)
    gate_stride = 0 if gates is None else gates.check("gates", layout.channels)[1]
    require_shape("out", out, (n_rows, layout.channels))
    require_shape("weights", c.weights, (layout.channels, layout.kernel))
    require_shape("ring", ring, (int(ring.shape[0]), layout.ring_rows, layout.channels))
    n_sequences = at.sequences.check()
    launcher.launch(
        CONVOLVE,
        (-(-layout.channels // THREADS), n_rows),
        [
            inputs.rows, stride, inputs.first, ring, layout.ring_rows, layout.channels, c.weights,
            layout.kernel, c.bias, int(c.activated), None if gates is None else gates.rows,
            gate_stride, 0 if gates is None else gates.first, at.sequences.starts,
            at.sequences.slots, at.sequences.past, n_sequences, out,
        ],
    )  # fmt: skip


def scan(
    launcher: Launcher,
    at: LayerStep,
    made: Array,
    scales: Columns,
    weights: ScanWeights,
    out: Array,
    waits: Array | None = None,
) -> None:
    """`made` (T, channels) to what is read of the states, (T, value width). `scales`: dt of each
    value head, or beta. `waits` (T, value heads * key_dim): of decays for each number of a key."""
    layout, layer, sequences = at.layout, at.state, at.sequences
    n_rows, stride = scales.check("scales", layout.n_value_heads)
    layer.check(layout)
    require_shape("made", made, (n_rows, layout.channels))
    require_shape("out", out, (n_rows, layout.value_width))
    if layout.key_dim > MOST_KEY_VALUES:
        raise ValueError(f"keys of {layout.key_dim} values; {MOST_KEY_VALUES} at most")
    if waits is not None:
        require_shape("waits", waits, (n_rows, layout.n_value_heads * layout.key_dim))
    splits = -(-layout.value_dim // SCAN_WARPS)
    launcher.launch(
        SCAN if waits is None else SCAN_DELTA,
        (layout.n_value_heads * splits, sequences.check()),
        [
            layer.state, layer.keys, layer.updates, layer.decays, layer.header,
            layout.n_key_heads, layout.n_value_heads, layout.key_dim, layout.value_dim,
            layout.window, made, scales.rows, stride, scales.first, waits, weights.dt_bias,
            weights.a, weights.d, weights.eps, sequences.starts, sequences.slots, sequences.past,
            sequences.n_pending_accepted, out,
        ],
    )  # fmt: skip


def finish(
    launcher: Launcher,
    rows: Array,
    gates: Array,
    n_slices: int,
    *,
    norm: Array | None,
    eps: float,
    is_delta: bool,
) -> None:
    """`rows` (T, width) in place: times silu of the gates, then normed in slices; or with
    `is_delta` normed, then times the sigmoid of the gates, which begin each row of theirs."""
    n_rows, width = matrix_shape("rows", rows)
    gate_stride = Columns(gates).check("gates", width)[1]
    size, left = divmod(width, n_slices)
    if left or (norm is not None and int(norm.shape[0]) not in (size, width)):
        raise ValueError(f"{n_slices} slices of rows of {width} values")
    is_shared = norm is not None and int(norm.shape[0]) == size
    launcher.launch(
        FINISH,
        (n_slices, n_rows),
        [rows, size, gates, gate_stride, norm, int(is_shared), eps, int(is_delta)],
    )


def keep(launcher: Launcher, at: LayerStep, inputs: Columns) -> None:
    """The inputs of a step into the ring, after all that reads the old ones; and what is pending
    from now on."""
    layout, layer, sequences = at.layout, at.state, at.sequences
    n_rows, stride = inputs.check("inputs", layout.channels)
    layer.check(layout)
    launcher.launch(
        KEEP,
        (min(n_rows, layout.ring_rows), sequences.check()),
        [
            layer.ring, inputs.rows, stride, inputs.first, layout.channels, layout.ring_rows,
            layout.window, layer.header, sequences.starts, sequences.slots, sequences.past,
            sequences.n_pending_accepted,
        ],
    )  # fmt: skip
