"""Writing kernels: LLVM values with Python operators, loops and variables.

A kernel is a function `(arguments, part, parts)` of three int64: the address of its argument words,
and which share of the work to do. Python runs while a kernel is *written*; a Python loop here is an
unrolled loop there. There are no fast-math flags anywhere, so the order of operations is the order
in which they are written, and a product meets a sum in one rounding only where `fma` says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

from llvmlite import binding, ir

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32, F64 = ir.HalfType(), ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()
VOID = ir.VoidType()
KERNEL = ir.FunctionType(VOID, [I64, I64, I64])
LANES = 16  # 32-bit lanes of a vector; a machine without such registers gets several
SIGNED_BITS = 8  # of weights that need the whole byte; all others have fewer and no sign

Type = Any


def vector(element: Type, n: int = LANES) -> Type:
    return ir.VectorType(element, n)


def is_float(kind: Type) -> bool:
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    return isinstance(element, (ir.FloatType, ir.DoubleType))


class Value:
    """An SSA value. Operators take another value of the same type, or a Python number."""

    __slots__ = ("builder", "v")

    def __init__(self, builder: ir.IRBuilder, v: Any) -> None:
        self.builder, self.v = builder, v

    @property
    def type(self) -> Type:
        return self.v.type

    def _op(self, name: str, other: Value | float, swap: bool = False) -> Value:
        right = other.v if isinstance(other, Value) else constant(self.type, other)
        left, right = (right, self.v) if swap else (self.v, right)
        return Value(self.builder, getattr(self.builder, name)(left, right))

    def _arithmetic(self, name: str, other: Value | float, swap: bool = False) -> Value:
        return self._op("f" + name if is_float(self.type) else name, other, swap)

    def __add__(self, other: Value | float) -> Value:
        return self._arithmetic("add", other)

    def __radd__(self, other: float) -> Value:
        return self._arithmetic("add", other)

    def __sub__(self, other: Value | float) -> Value:
        return self._arithmetic("sub", other)

    def __rsub__(self, other: float) -> Value:
        return self._arithmetic("sub", other, swap=True)

    def __mul__(self, other: Value | float) -> Value:
        return self._arithmetic("mul", other)

    def __rmul__(self, other: float) -> Value:
        return self._arithmetic("mul", other)

    def __truediv__(self, other: Value | float) -> Value:
        return self._op("fdiv", other)

    def __rtruediv__(self, other: float) -> Value:
        return self._op("fdiv", other, swap=True)

    def __floordiv__(self, other: Value | int) -> Value:
        return self._op("sdiv", other)  # of numbers that are not negative

    def __mod__(self, other: Value | int) -> Value:
        return self._op("srem", other)  # of numbers that are not negative

    def __and__(self, other: Value | int) -> Value:
        return self._op("and_", other)

    def __or__(self, other: Value | int) -> Value:
        return self._op("or_", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._op("xor", other)

    def __lshift__(self, other: Value | int) -> Value:
        return self._op("shl", other)

    def __rshift__(self, other: Value | int) -> Value:
        return self._op("lshr", other)

    def shift_signed(self, bits: int) -> Value:
        return self._op("ashr", bits)

    def _compare(self, sign: str, other: Value | float) -> Value:
        right = other.v if isinstance(other, Value) else constant(self.type, other)
        name = "fcmp_ordered" if is_float(self.type) else "icmp_signed"
        return Value(self.builder, getattr(self.builder, name)(sign, self.v, right))

    def __lt__(self, other: Value | float) -> Value:
        return self._compare("<", other)

    def __le__(self, other: Value | float) -> Value:
        return self._compare("<=", other)

    def __gt__(self, other: Value | float) -> Value:
        return self._compare(">", other)

    def __ge__(self, other: Value | float) -> Value:
        return self._compare(">=", other)

    def equals(self, other: Value | float) -> Value:
        return self._compare("==", other)

    def select(self, yes: Value, no: Value) -> Value:
        return Value(self.builder, self.builder.select(self.v, yes.v, no.v))

    def bits(self, kind: Type) -> Value:
        """The same bits, read as another type of the same size."""
        return Value(self.builder, self.builder.bitcast(self.v, kind))

    def widen(self, kind: Type, *, signed: bool = False) -> Value:
        return Value(
            self.builder, (self.builder.sext if signed else self.builder.zext)(self.v, kind)
        )

    def narrow(self, kind: Type) -> Value:
        return Value(self.builder, self.builder.trunc(self.v, kind))

    def to_double(self) -> Value:
        return Value(self.builder, self.builder.fpext(self.v, F64))

    def to_float(self, kind: Type) -> Value:
        return Value(self.builder, self.builder.sitofp(self.v, kind))


def constant(kind: Type, value: float) -> Any:
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [value] * kind.count)
    return ir.Constant(kind, value)


class Variable:
    """A local that changes; it lives in a register once LLVM has seen it."""

    __slots__ = ("builder", "kind", "slot")

    def __init__(self, builder: ir.IRBuilder, slot: Any, kind: Type) -> None:
        self.builder, self.slot, self.kind = builder, slot, kind

    def get(self) -> Value:
        return Value(self.builder, self.builder.load(self.slot, typ=self.kind))

    def set(self, value: Value) -> None:
        self.builder.store(value.v, self.slot)


@cache
def lane_numbers(lanes: tuple[int, ...]) -> Any:
    """For a shuffle. Kept: a kernel has thousands, and few that differ."""
    return ir.Constant(ir.VectorType(I32, len(lanes)), list(lanes))


class Emitter:
    """One function being written."""

    def __init__(self, module: ir.Module, name: str, simd: Simd, kind: Any = KERNEL) -> None:
        self.module, self.simd = module, simd
        self.function = ir.Function(module, kind, name)
        self.function.attributes.add("nounwind")
        self.entry = ir.IRBuilder(self.function.append_basic_block("entry"))
        self.builder = ir.IRBuilder(self.function.append_basic_block("body"))
        self.parameters = [Value(self.builder, a) for a in self.function.args]

    def finish(self, value: Value | None = None) -> None:
        if value is None:
            self.builder.ret_void()
        else:
            self.builder.ret(value.v)
        self.entry.branch(self.function.basic_blocks[1])

    # values

    def const(self, kind: Type, value: float) -> Value:
        return Value(self.builder, constant(kind, value))

    def index(self, value: int) -> Value:
        return self.const(I64, value)

    def table(self, kind: Type, values: list[int]) -> Value:
        """A vector constant with its own value in each lane."""
        return Value(self.builder, ir.Constant(kind, values))

    def splat(self, value: Value, n: int = LANES) -> Value:
        kind = vector(value.type, n)
        one = self.builder.insert_element(
            ir.Constant(kind, ir.Undefined), value.v, constant(I32, 0)
        )
        return Value(self.builder, self.builder.shuffle_vector(one, one, lane_numbers((0,) * n)))

    def lane(self, value: Value, index: int | Value) -> Value:
        at = index.v if isinstance(index, Value) else constant(I32, index)
        return Value(self.builder, self.builder.extract_element(value.v, at))

    def half_of(self, value: Value, first: int, n: int) -> Value:
        """Lanes first … first + n - 1."""
        return self.choose(value, value, list(range(first, first + n)))

    def choose(self, a: Value, b: Value, lanes: list[int]) -> Value:
        """Of the lanes of a, then of b, those with these numbers."""
        order = lane_numbers(tuple(lanes))
        return Value(self.builder, self.builder.shuffle_vector(a.v, b.v, order))

    def call(self, name: str, result: Type, *args: Value) -> Value:
        """An LLVM intrinsic or an external function."""
        function = self.module.globals.get(name)
        if function is None:
            kind = ir.FunctionType(result, [a.type for a in args])
            function = ir.Function(self.module, kind, name)
        return Value(self.builder, self.builder.call(function, [a.v for a in args]))

    def call_address(self, kind: Any, address: Value, *args: Value) -> None:
        """A function of a known kind, by its address."""
        pointer = self.builder.inttoptr(address.v, kind.as_pointer())
        self.builder.call(pointer, [a.v for a in args])

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.simd.fma(self, a, b, c)

    def sum_lanes(self, value: Value) -> Value:
        """In one fixed order: halves onto each other, down to one."""
        n = value.type.count
        while n > 1:
            n //= 2
            value = self.half_of(value, 0, n) + self.half_of(value, n, n)
        return self.lane(value, 0)

    def larger(self, a: Value, b: Value) -> Value:
        """The larger of two floats, lane by lane; NaN if one of them is."""
        lanes = f"v{a.type.count}" if isinstance(a.type, ir.VectorType) else ""
        return self.call(f"llvm.maximum.{lanes}f32", a.type, a, b)

    def largest_lane(self, value: Value) -> Value:
        n = value.type.count
        while n > 1:
            n //= 2
            value = self.larger(self.half_of(value, 0, n), self.half_of(value, n, n))
        return self.lane(value, 0)

    # memory, by address

    def load(self, kind: Type, address: Value, align: int = 4) -> Value:
        pointer = self.builder.inttoptr(address.v, POINTER)
        return Value(self.builder, self.builder.load(pointer, typ=kind, align=align))

    def store(self, value: Value, address: Value, align: int = 4) -> None:
        self.builder.store(value.v, self.builder.inttoptr(address.v, POINTER), align=align)

    def prefetch(self, address: Value, level: int = 2) -> None:
        """Into the first or the second level of the cache."""
        pointer = Value(self.builder, self.builder.inttoptr(address.v, POINTER))
        hints = [self.const(I32, hint) for hint in (0, 4 - level, 1)]  # read, level, data
        self.call("llvm.prefetch.p0", VOID, pointer, *hints)

    def barrier(self) -> None:
        """No instruction; but no load moves across, so that fewer registers are needed at once."""
        self.builder.fence("acq_rel", "singlethread")

    def words(self, address: Value, n: int) -> list[Value]:
        """The n int64 words of an argument block."""
        return [self.load(I64, address + 8 * i, 8) for i in range(n)]

    def scratch(self, kind: Type, n: int) -> Value:
        """Address of a local array of n values."""
        slot = self.entry.alloca(kind, constant(I32, n))
        slot.align = 64
        return Value(self.builder, self.builder.ptrtoint(slot, I64))

    # control

    def variable(self, initial: Value) -> Variable:
        made = Variable(self.builder, self.entry.alloca(initial.type), initial.type)
        made.set(initial)
        return made

    @contextmanager
    def range(self, start: Value | int, stop: Value | int, step: int = 1) -> Iterator[Value]:
        first = start if isinstance(start, Value) else self.index(start)
        last = stop if isinstance(stop, Value) else self.index(stop)
        index = self.variable(first)
        head = self.function.append_basic_block("loop")
        body = self.function.append_basic_block("do")
        done = self.function.append_basic_block("done")
        self.builder.branch(head)
        self.builder.position_at_end(head)
        i = index.get()
        self.builder.cbranch((i < last).v, body, done)
        self.builder.position_at_end(body)
        yield i
        index.set(i + step)
        self.builder.branch(head)
        self.builder.position_at_end(done)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.builder.if_then(condition.v):
            yield

    @contextmanager
    def repeat_while(self) -> Iterator[Any]:
        """An endless loop; the body gets a function that leaves it when a condition holds."""
        body = self.function.append_basic_block("again")
        done = self.function.append_basic_block("left")

        def leave_if(condition: Value) -> None:
            go_on = self.function.append_basic_block("go_on")
            self.builder.cbranch(condition.v, done, go_on)
            self.builder.position_at_end(go_on)

        self.builder.branch(body)
        self.builder.position_at_end(body)
        yield leave_if
        self.builder.branch(body)
        self.builder.position_at_end(done)

    def minimum(self, a: Value, b: Value | int) -> Value:
        other = b if isinstance(b, Value) else self.index(b)
        return (a < other).select(a, other)

    def maximum(self, a: Value, b: Value | int) -> Value:
        other = b if isinstance(b, Value) else self.index(b)
        return (a > other).select(a, other)

    def share(self, n: Value, part: Value, parts: Value) -> tuple[Value, Value]:
        """Of n pieces of work, those of this part: [first, last)."""
        return n * part // parts, n * (part + 1) // parts


# Weights (64 x i8), and for each row the activation bytes (16 x i32, the same 4 in every lane).
Term = tuple[Value, list[Value]]


class Simd(ABC):
    """What instruction sets differ in: integer dot products, fma, half floats, byte lookups.

    Vectors have 16 lanes of 32 bits everywhere; LLVM splits them where registers are narrower. A
    set says which CPU features it may use, and how the few operations are written with them.
    """

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
