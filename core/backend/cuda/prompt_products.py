"""Products of many rows: weights unpacked to bfloat16, a piece at a time, and multiplied there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec import Struct

from ....cuda_kernels import qmm
from ....cuda_kernels.dequant import GROUP_ROWS, dequant_bf16
from ....cuda_kernels.embed import GgufTable, gguf_to_bf16
from ....cuda_kernels.gate_rows import gate_rows
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.mm_bf16_skinny import Plain, PlainMatrix, mm_skinny
from ....cuda_kernels.wide_rows import add_bias
from .device_contract import Device
from .weights import CudaMatrix, ProductPart

# Values: 128 MiB of bfloat16. A third of the widest product of a 27B, so that each of its pieces
# still has tiles for all processors several times over.
SCRATCH = 64 << 20
NARROW = 256  # outputs: float32 weights of so few stay float32, they are gates of a delta net


class WideRows(Struct):
    """Rows for products of many rows."""

    halves: Array  # bfloat16 as uint16 (call, width): rows from n_rows on are padding
    n_rows: int
    floats: Callable[[], Array] | None = None  # the same in float32, (n_rows, width), made now

    @property
    def call(self) -> int:
        return int(self.halves.shape[0])


class PromptProducts:
    def __init__(self, device: Device, scratch: int = SCRATCH) -> None:
        self._device, self._launcher = device, device.launcher
        self._most = scratch
        self._scratch: Array | None = None

    def rows(self, a: WideRows, w: CudaMatrix) -> Array:
        """float32 (n_rows, n_out)."""
        y = self._device.empty((a.call, w.n_out), "float32")
        for piece in w.pieces:
            self._put(a, piece, w.n_in, y)
        return y[: a.n_rows]

    def gated(self, a: WideRows, w: CudaMatrix, activation: int) -> WideRows:
        """activation(gate) * up, of gates and ups that lie side by side for a while only.

        `activation`: see `qmm.gate_code`.
        """
        width = w.n_out // 2
        out = self._device.empty((a.call, width), "uint16")
        if w.gated is None:
            rows = self.rows(a, w)
            gate_rows(self._launcher, rows, activation, halves=out[: a.n_rows])
            return WideRows(out, a.n_rows)
        for first, n_rows in self._cuts(w.n_out, w.n_in):
            weights = self._room(n_rows, w.n_in)
            dequant_bf16(self._launcher, w.gated, weights, first_row=first, gated=True)
            y = self._device.empty((a.call, n_rows), "float32")
            self._device.matmul(a.halves, weights, y)
            if w.gated.bias is not None:
                self._add_gated_bias(y[: a.n_rows], w.gated.bias, first, n_rows, width)
            halves, column = out[: a.n_rows], first // 2
            gate_rows(self._launcher, y[: a.n_rows], activation, halves=halves, column=column)
        return WideRows(out, a.n_rows)

    def _add_gated_bias(self, y: Array, bias: Array, first: int, n_rows: int, width: int) -> None:
        half, begin = n_rows // 2, first // 2
        add_bias(self._launcher, y, bias[begin : begin + half])
        add_bias(self._launcher, y, bias[width + begin : width + begin + half], column=half)

    def _put(self, a: WideRows, piece: ProductPart, n_in: int, y: Array) -> None:
        """Into the columns of y from `piece.column` on."""
        weights, column = piece.weights, piece.column
        if (
            isinstance(weights, PlainMatrix)
            and a.floats is not None
            and _stays_float(weights, n_in)
        ):
            mm_skinny(self._launcher, a.floats(), weights, y[: a.n_rows], column=column)
            return
        n_out = weights.rows if isinstance(weights, qmm.Matrix) else int(weights.weights.shape[0])
        for first, n_rows in self._cuts(n_out, n_in):
            at = column + first
            there = self._unpacked(weights, first, n_rows, n_in)
            self._device.matmul(a.halves, there, y[:, at : at + n_rows])
        if weights.bias is not None:
            add_bias(self._launcher, y[: a.n_rows], weights.bias, column=column)

    def _unpacked(
        self, weights: qmm.Matrix | PlainMatrix, first: int, n_rows: int, n_in: int
    ) -> Array:
        """bfloat16 (n_rows, n_in), in memory that the next piece overwrites."""
        if isinstance(weights, qmm.Matrix):
            room = self._room(n_rows, n_in)
            dequant_bf16(self._launcher, weights, room, first_row=first)
            return room
        if weights.kind is Plain.BF16:
            return weights.weights[first : first + n_rows, :n_in]
        width = int(weights.weights.shape[1])
        room = self._room(n_rows, width)
        stored = self._device.as_bytes(weights.weights)
        gguf_to_bf16(self._launcher, GgufTable(stored, weights.kind.name, width), first, room)
        return room[:, :n_in]

    def _cuts(self, n_out: int, n_in: int) -> Iterator[tuple[int, int]]:
        """First row and number of rows of pieces of a matrix that fit, about equally long."""
        most = max(GROUP_ROWS, self._most // (n_in + 8) // GROUP_ROWS * GROUP_ROWS)
        n_pieces = -(-n_out // most)
        each = -(-n_out // (n_pieces * GROUP_ROWS)) * GROUP_ROWS
        for first in range(0, n_out, each):
            yield first, min(each, n_out - first)

    def _room(self, n_rows: int, width: int) -> Array:
        n = n_rows * width
        if self._scratch is None or int(self._scratch.shape[0]) < n:
            self._scratch = self._device.empty((n,), "uint16")
        return self._scratch[:n].reshape(n_rows, width)


def _stays_float(weights: PlainMatrix, n_in: int) -> bool:
    n_out, n_k = weights.weights.shape
    return weights.kind is Plain.F32 and n_out <= NARROW and n_k == n_in
