"""What instruction sets differ in: integer dot products, fma, half floats, byte lookups.

Vectors have 16 lanes of 32 bits everywhere; LLVM splits them where registers are narrower. A set
says which CPU features it may use, and how the few operations are written with them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from llvmlite import binding, ir

if TYPE_CHECKING:
    from ..emit import Emitter, Value

I8, I16, I32 = (ir.IntType(bits) for bits in (8, 16, 32))
F16, F32 = ir.HalfType(), ir.FloatType()
I8X64, I32X16 = ir.VectorType(I8, 64), ir.VectorType(I32, 16)
SIGNED_BITS = 8  # of weights that need the whole byte; all others have fewer and no sign

# Weights (64 x i8), and for each row the activation bytes (16 x i32, the same 4 in every lane).
Term = tuple["Value", list["Value"]]


class Simd(ABC):
    name: ClassVar[str]
    architecture: ClassVar[str]  # as a target triple begins; "" for any
    features: ClassVar[tuple[str, ...]]  # as LLVM names them; all must be present
    # How weights of a whole byte come, whose zero point is 128: as they are stored beside it (0 to
    # 255, the kernel begins its sums at -128 * sum(x)), or as signed bytes.
    takes_signed: ClassVar[bool] = True
    # Whether `lookup` is worth its time in a product; where not, tables are met when loading.
    looks_up: ClassVar[bool] = True
    # Whether a row's bytes may have weights in `dots`: the first and second of each four, and the
    # third and fourth. So it is where bytes are multiplied in pairs; it costs nothing there.
    weighs_pairs: ClassVar[bool] = False
    # Vectors of 16 lanes that sums may fill, beside what else has to be in registers.
    sums_at_once: ClassVar[int] = 8

    @classmethod
    def is_available(cls) -> bool:
        present = binding.get_host_cpu_features()
        return all(present.get(feature, False) for feature in cls.features)

    def cpu(self) -> str:
        """The machine to compile for: the least of its architecture, and no guess beyond it."""
        return {"x86_64": "x86-64", "aarch64": "generic"}[self.architecture]

    def feature_string(self) -> str:
        return ",".join(f"+{feature}" for feature in self.features)

    def dots(
        self,
        e: Emitter,
        totals: list[Value],
        terms: Iterable[Term],
        bits: int,
        pairs: list[Value] | None = None,
    ) -> list[Value]:
        """totals (16 x i32, one for each row) += the dot products of all terms, exactly.

        Weights have `bits` bits without sign; SIGNED_BITS stands for what `takes_signed` says.
        Activations are -127 to 127. `pairs`: what the pairs of each row are multiplied by, (16 x
        i32) of two int16 each; only where `weighs_pairs`.
        """
        assert pairs is None
        totals = list(totals)
        for weights, rows in terms:
            totals = [self.dot(e, t, weights, x, bits) for t, x in zip(totals, rows, strict=True)]
        return totals

    @abstractmethod
    def dot(self, e: Emitter, total: Value, weights: Value, x: Value, bits: int) -> Value:
        """total += sum of 4 products of bytes per lane: one term of one row."""

    def fma(self, e: Emitter, a: Value, b: Value, c: Value) -> Value:
        """One rounding."""
        lanes = f"v{a.type.count}" if isinstance(a.type, ir.VectorType) else ""
        return e.call(f"llvm.fma.{lanes}f32", a.type, a, b, c)

    def from_half(self, e: Emitter, half: Value) -> Value:
        """16 x i16 holding half floats, to 16 x f32."""
        n = half.type.count
        kind = ir.VectorType(F16, n)
        return type(half)(e.builder, e.builder.fpext(half.bits(kind).v, ir.VectorType(F32, n)))

    def to_half(self, e: Emitter, value: Value) -> Value:
        """16 x f32 to 16 x i16 holding half floats, rounded to nearest even."""
        n = value.type.count
        narrow = e.builder.fptrunc(value.v, ir.VectorType(F16, n))
        return type(value)(e.builder, narrow).bits(ir.VectorType(I16, n))

    @abstractmethod
    def lookup(self, e: Emitter, table: list[int], index: Value) -> Value:
        """table[index] for 64 bytes with values 0 … 15."""


@cache
def lane_numbers(lanes: tuple[int, ...]) -> Any:
    """For a shuffle. Kept: a kernel has thousands, and few that differ."""
    return ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))


def in_parts(e: Emitter, n: int, write: Callable[..., Value], *vectors: Value) -> Value:
    """`write` of each n-th of the vectors, for instructions that take no more at a time."""
    parts = [split(e, vector, n) for vector in vectors]
    return join(e, [write(*pieces) for pieces in zip(*parts, strict=True)])


def pick(e: Emitter, value: Value, lanes: list[int], beside: Value | None = None) -> Value:
    """A vector of some lanes; those of `beside` count on from the first vector's."""
    order = lane_numbers(tuple(lanes))
    other = value if beside is None else beside
    return type(value)(e.builder, e.builder.shuffle_vector(value.v, other.v, order))


def split(e: Emitter, value: Value, n: int) -> list[Value]:
    """n equal parts, in order."""
    size = value.type.count // n
    return [e.half_of(value, i * size, size) for i in range(n)]


def join(e: Emitter, parts: list[Value]) -> Value:
    """The opposite of `split`, of a power of two of parts."""
    while len(parts) > 1:
        lanes = list(range(2 * parts[0].type.count))
        parts = [pick(e, a, lanes, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]
