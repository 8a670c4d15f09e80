"""The Gated DeltaNet of a layer, one launch for all sequences of a step.

Input rows are [q | k | v] and [z | beta | alpha]. The first are in the ring already, because the
input projection put them there (`ring_rows` says where), or they are given as plain rows;
then `keep_rows` puts the last of them into the ring afterwards, for the next step.
"""

from __future__ import annotations

from dataclasses import dataclass

from .gdn_layout import GdnSequences, GdnShape, GdnState
from .kernel import Array, Kernel, Launcher, Source
from .norm_quant import NormOutputs
from .shapes import matrix_shape, require_shape

THREADS = 256
CHUNK = 8  # rows of a sequence that are finished together, at least
PROLOGUE = 16  # rows of a state whose work is about that of a block before it begins
STEP_VARIANTS = {16: (1,), 32: (1,), 64: (1, 2), 128: (1, 2, 4)}  # rows of a state per thread
REGISTERS = 128  # two blocks of 256 threads on a multiprocessor


def step_kernel(head_dim: int, rows: int, kernel: int = 4) -> Kernel:
    """`rows`: of the state in each thread. All of them leave the same bits."""
    source = Source("gdn_step.cu", (("HEAD_DIM", head_dim), ("CONV_WIDTH", kernel)))
    name = f"gdn_step_{head_dim}_r{rows}"
    threads = min(THREADS, head_dim * _lanes(head_dim) // rows)
    return Kernel(name, source, "delta_rule", threads, registers=REGISTERS, shared=48 << 10)


def _lanes(head_dim: int) -> int:
    return 8 if head_dim >= 32 else 4


KERNELS = tuple(step_kernel(d, rows) for d, variants in STEP_VARIANTS.items() for rows in variants)


@dataclass(frozen=True, slots=True)
class GdnWeights:
    """Float32, as `DeltaRule` has them."""

    shape: GdnShape
    conv: Array  # (channels, kernel), the last column meets the newest row
    dt_bias: Array  # (n_value_heads,)
    a: Array  # (n_value_heads,) = -exp(A_log)
    norm: Array  # (head_dim,)
    eps: float

    def check(self) -> None:
        shape = self.shape
        require_shape("conv", self.conv, (shape.channels, shape.kernel))
        require_shape("dt_bias", self.dt_bias, (shape.n_value_heads,))
        require_shape("a", self.a, (shape.n_value_heads,))
        require_shape("norm", self.norm, (shape.head_dim,))


@dataclass(frozen=True, slots=True)
class GdnRows:
    """Float32 input rows. Rows and `z_column` lie at 16 bytes: their widths are multiples of 4."""

    gates: Array  # (T, any), z | beta | alpha from column `z_column` on
    z_column: int
    inputs: Array | None = None  # (T, any), q | k | v from column 0 on; None: they are in the ring
    max_rows: int | None = None  # that any one sequence has; None: it may have all

    def check(self, shape: GdnShape) -> int:
        """The number of rows."""
        n_rows, width = matrix_shape("gates", self.gates)
        if width < self.z_column + shape.gates_width or width % 4 or self.z_column % 4:
            raise ValueError(
                f"gates: z, beta and alpha take {shape.gates_width} columns from a multiple of 4 "
                f"on, of rows whose width is one; here they begin at {self.z_column} of {width}"
            )
        if self.inputs is not None:
            n_inputs, width = matrix_shape("inputs", self.inputs)
            if n_inputs != n_rows or width < shape.channels or width % 4:
                raise ValueError(
                    f"inputs: {n_inputs} rows of {width}, expected {n_rows} of at least "
                    f"{shape.channels}, a multiple of 4"
                )
            return n_rows
        most = n_rows if self.max_rows is None else self.max_rows
        if shape.rows_needed(most) > shape.ring_rows:
            raise ValueError(
                f"{most} rows of a sequence do not fit into a ring of {shape.ring_rows}: "
                f"cut the step, or give the rows as plain inputs"
            )
        return n_rows


@dataclass(frozen=True, slots=True)
class GdnWorkspace:
    """Shared by all layers; `arrivals` is zero before the first step and after each one."""

    raw: Array  # float32, `raw_shape`
    arrivals: Array  # int32, (n_arrivals,)

    def check(self, shape: GdnShape, n_rows: int, n_sequences: int) -> None:
        if _size(self.raw) < _product(raw_shape(shape, n_rows)):
            raise ValueError(f"raw: shape {tuple(self.raw.shape)} is too small for {n_rows} rows")
        needed = n_arrivals(shape, n_rows, n_sequences)
        if _size(self.arrivals) < needed:
            raise ValueError(f"arrivals: shape {tuple(self.arrivals.shape)}, needed are {needed}")


def raw_shape(shape: GdnShape, n_rows: int) -> tuple[int, ...]:
    return n_rows, 2, shape.value_width


def n_arrivals(shape: GdnShape, n_rows: int, n_sequences: int) -> int:
    groups = -(-shape.value_width // 256)
    return n_sequences + (n_rows // CHUNK + n_sequences) * groups


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= int(size)
    return product


def _size(array: Array) -> int:
    return _product(tuple(array.shape))


def gdn_step(
    launcher: Launcher,
    weights: GdnWeights,
    layer: GdnState,
    sequences: GdnSequences,
    rows: GdnRows,
    workspace: GdnWorkspace,
    out: NormOutputs,
    *,
    rows_per_thread: int | None = None,
) -> None:
    """Run the rows of a step through a layer's state, and leave the output projection's input.

    `rows_per_thread`: None leaves the choice to `choose_rows`; all leave the same bits.
    """
    shape = weights.shape
    n_rows, n_sequences = rows.check(shape), sequences.check()
    weights.check()
    layer.check(shape)
    workspace.check(shape, n_rows, n_sequences)
    if rows_per_thread is None:
        rows_per_thread = choose_rows(shape, n_sequences, launcher.n_processors)
    if rows_per_thread not in STEP_VARIANTS[shape.head_dim]:
        raise ValueError(
            f"{rows_per_thread} rows per thread; {STEP_VARIANTS[shape.head_dim]} are possible"
        )
    kernel = step_kernel(shape.head_dim, rows_per_thread, shape.kernel)
    splits = shape.head_dim // _rows_of_block(shape.head_dim, rows_per_thread)
    inputs_stride = 0 if rows.inputs is None else int(rows.inputs.shape[1])
    launcher.launch(
        kernel,
        (shape.n_value_heads * splits, n_sequences),
        [
            *(weights.conv, weights.dt_bias, weights.a, weights.norm, float(weights.eps)),
            *layer.arguments,
            *(sequences.starts, sequences.slots, sequences.past, sequences.n_pending_accepted),
            *(rows.inputs, inputs_stride, rows.gates, int(rows.gates.shape[1]), rows.z_column),
            *(workspace.raw, workspace.arrivals),
            *out.checked(n_rows, shape.value_width),
            *(shape.n_key_heads, shape.n_value_heads, int(shape.tiled)),
            *(shape.window, shape.ring_rows),
        ],
    )


def _rows_of_block(head_dim: int, rows: int) -> int:
    lanes = _lanes(head_dim)
    return min(THREADS, head_dim * lanes // rows) // lanes * rows


def choose_rows(shape: GdnShape, n_sequences: int, n_processors: int) -> int:
    """Rows per thread for which the fullest multiprocessor has the least to do.

    Fewer rows spread a state over more of them; each block repeats the convolution of q and k.
    """

    def cost(rows: int) -> int:
        in_block = _rows_of_block(shape.head_dim, rows)
        blocks = shape.value_width // in_block * n_sequences
        return -(-blocks // n_processors) * (in_block + PROLOGUE)

    return min(reversed(STEP_VARIANTS[shape.head_dim]), key=cost)
