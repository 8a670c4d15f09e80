"""Picking a token from a row of logits: the common chains of `core/sampling`, natively.

The definition is over there. This does the same with the same numbers: comparisons, and float64
`+ - * /` in the same order. Only the exponentials of top-p are its own, and where they are near a
threshold it answers `UNSURE` instead of a token. See `core/backend/picking.py` for the request.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from llvmlite import ir

from ... import picking
from ...interface import MAXIMA_BLOCK
from ..emit import F32, F64, I16, I32, I64, LANES, Emitter, Value, Variable, vector
from .mathematics import F32X16
from .noise import F64X8, I64X8, WIDTH, exponential, gumbel, philox

if TYPE_CHECKING:
    from collections.abc import Iterator

# (logits, their block maxima, request, scratch, position) -> token or UNSURE
PICK = ir.FunctionType(I64, [I64] * 5)

_LOWEST: Final = -3.4028234663852886e38  # the lowest float32: below it there is only -inf
_INFINITE: Final = 0x7F800000  # exponent bits of what is not finite
_LOW: Final = 0xFFFFFFFF
_MARGIN: Final = 1e-9  # of a sum of exponentials; the errors of both versions are below 1e-13
_FARTHEST_LOGIT: Final = 1e100  # biased logits are held within this
# Beyond this scores swallow the noise, and the definition's short cuts are better not relied on.
_SWALLOWS: Final = 1e12


@dataclass(frozen=True)
class _List:
    """Candidates, best first, in scratch memory: sort keys, then logits and ids."""

    e: Emitter
    scratch: Value
    n: Variable

    def _column(self, index: int, i: Value) -> Value:
        return self.scratch + i * 8 + index * (picking.SCRATCH_BYTES // 4)

    def key(self, i: Value) -> Value:
        return self._column(0, i)

    def value(self, i: Value) -> Value:
        return self._column(1, i)

    def id(self, i: Value) -> Value:
        return self._column(2, i)

    def score(self, i: Value) -> Value:
        return self._column(3, i)

    @contextmanager
    def vectors(self) -> Iterator[Value]:
        """Indices 0, 8, 16 … : all candidates, and up to 7 idle ones behind them."""
        with self.e.range(0, self.n.get(), WIDTH) as i:
            yield i


def write_pick(e: Emitter) -> None:
    logits, maxima, request, scratch, position = e.parameters
    words = e.words(request, picking.FIRST_FILTER)
    n_blocks = (words[picking.N_VOCAB] + (MAXIMA_BLOCK - 1)) // MAXIMA_BLOCK
    result = e.variable(e.index(picking.UNSURE))
    best = _largest(e, maxima, n_blocks)
    with e.when((best.bits(I32) & _INFINITE) < _INFINITE):
        wanted = words[picking.N_BEST] + words[picking.N_BIASES]
        # So many of the best blocks hold the best tokens; where there are few blocks, look closer.
        is_long = n_blocks > wanted
        values = is_long.select(maxima, logits)
        n_values = is_long.select(n_blocks, words[picking.N_VOCAB])
        floor = _floor(e, values, n_values, wanted, best)
        found = _List(e, scratch, e.variable(e.index(0)))
        _collect(e, found, (logits, maxima, n_blocks), words, floor)
        _widen(e, found, logits)
        _add_biased(e, found, logits, words)
        sure = e.variable((found.n.get() > 0).widen(I64))
        _fill_up(e, found)
        _filter(e, found, request + 8 * picking.FIRST_FILTER, words[picking.N_FILTERS], sure)
        with e.when(sure.get() > 0):
            _draw(e, found, words, position, result)
    e.finish(result.get())


# The best of a row -------------------------------------------------------------------------------


def _largest(e: Emitter, values: Value, n: Value) -> Value:
    """NaN if one of them is; n is at least 1."""
    best = e.variable(e.load(F32, values))
    wide = e.variable(e.splat(best.get()))
    whole = n // LANES * LANES
    with e.range(0, whole, LANES) as i:
        wide.set(e.larger(wide.get(), e.load(F32X16, values + i * 4)))
    best.set(e.largest_lane(wide.get()))
    with e.range(whole, n) as i:
        best.set(e.larger(best.get(), e.load(F32, values + i * 4)))
    return best.get()


def _ordered(value: Value) -> Value:
    """Integers in the order of the floats; the same again turns them back."""
    bits = value.bits(I32) if value.type == F32 else value
    return bits ^ (bits.shift_signed(31) & 0x7FFFFFFF)


def _floor(e: Emitter, values: Value, n: Value, wanted: Value, best: Value) -> Variable:
    """A number that at least `wanted` values reach, if there are so many, and not many more.

    By halving the interval that it lies in: some ten passes over them, whatever `wanted` is.
    """
    floor = e.variable(e.const(F32, _LOWEST))
    with e.when(wanted.equals(1)):
        floor.set(best)
    with e.when((wanted > 1) & (wanted < n)):
        low = e.variable(_ordered(floor.get()).widen(I64, signed=True))
        high = e.variable(_ordered(best).widen(I64, signed=True) + 1)
        enough = wanted + (wanted >> 2) + 4
        with e.repeat_while() as leave_if:
            leave_if(high.get() - low.get() <= 1)
            middle = (low.get() + high.get()).shift_signed(1)
            reaching = _count(e, values, n, _ordered(middle.narrow(I32)).bits(F32))
            with e.when(reaching < wanted):
                high.set(middle)
            with e.when(reaching >= wanted):
                low.set(middle)
                with e.when(reaching <= enough):
                    high.set(middle)
        floor.set(_ordered(low.get().narrow(I32)).bits(F32))
    return floor


def _count(e: Emitter, values: Value, n: Value, floor: Value) -> Value:
    """How many reach the floor."""
    kind = vector(I32)
    total, wide_floor = e.variable(e.const(kind, 0)), e.splat(floor)
    whole = n // LANES * LANES
    with e.range(0, whole, LANES) as i:
        reach = e.load(F32X16, values + i * 4) >= wide_floor
        total.set(total.get() - reach.widen(kind, signed=True))
    rest = e.variable(e.sum_lanes(total.get()))
    with e.range(whole, n) as i:
        rest.set(rest.get() + (e.load(F32, values + i * 4) >= floor).widen(I32))
    return rest.get().widen(I64)


def _each_reaching(
    e: Emitter, values: Value, n: Value, floor: Variable, body: Callable[[Value], None]
) -> None:
    """`body` for the index of each value that reaches the floor, ascending; it may raise it."""
    with e.range(0, n, LANES) as first:
        mask = e.variable(e.const(I32, 0))
        with e.when(first + LANES <= n):
            reach = e.load(F32X16, values + first * 4) >= e.splat(floor.get())
            mask.set(reach.bits(I16).widen(I32))
        with e.when(first + LANES > n), e.range(first, n) as i:
            reach = (e.load(F32, values + i * 4) >= floor.get()).widen(I32)
            mask.set(mask.get() | (reach << (i - first).narrow(I32)))
        with e.repeat_while() as leave_if:
            left = mask.get()
            leave_if(left.equals(0))
            lowest = e.call("llvm.cttz.i32", I32, left, e.const(ir.IntType(1), 1))
            mask.set(left & (left - 1))
            body(first + lowest.widen(I64))


def _collect(
    e: Emitter, found: _List, row: tuple[Value, Value, Value], words: list[Value], floor: Variable
) -> None:
    """The `N_BEST` best of the tokens without a bias, as sort keys.

    A key is the logit, in the order of integers, above the complement of the id: of equal logits
    the lower id is the better one. `+ 0.0` makes both zeros equal.
    """
    logits, maxima, n_blocks = row

    def consider(token: Value) -> None:
        logit = e.load(F32, logits + token * 4)
        key = (_ordered(logit + 0.0).widen(I64, signed=True) << 32) | (token ^ _LOW)
        with e.when(_is_biased(e, token, words) ^ 1):
            _insert_key(e, found, key, words[picking.N_BEST])
        with e.when(found.n.get().equals(words[picking.N_BEST])):
            last = e.load(I64, found.key(found.n.get() - 1), 8)
            worst = _ordered((last >> 32).narrow(I32)).bits(F32)
            floor.set((worst > floor.get()).select(worst, floor.get()))

    def scan(block: Value) -> None:
        start = block * MAXIMA_BLOCK
        n = e.minimum(words[picking.N_VOCAB] - start, MAXIMA_BLOCK)
        _each_reaching(e, logits + start * 4, n, floor, lambda i: consider(start + i))

    _each_reaching(e, maxima, n_blocks, floor, scan)


def _is_biased(e: Emitter, token: Value, words: list[Value]) -> Value:
    seen = e.variable(e.const(ir.IntType(1), 0))
    with e.range(0, words[picking.N_BIASES]) as i:
        is_it = e.load(I64, words[picking.BIAS_IDS] + i * 8, 8).equals(token)
        seen.set(seen.get() | is_it)
    return seen.get()


def _insert_key(e: Emitter, found: _List, key: Value, most: Value) -> None:
    def is_worse(i: Value) -> Value:
        return e.load(I64, found.key(i), 8) < key

    _insert(e, found, most, is_worse, lambda i: e.store(key, found.key(i), 8), [found.key])


def _insert(
    e: Emitter,
    found: _List,
    most: Value,
    is_worse: Callable[[Value], Value],
    put: Callable[[Value], None],
    columns: list[Callable[[Value], Value]],
) -> None:
    """Behind the last candidate that is not worse, if it is among the `most` best."""
    place = e.variable(found.n.get())
    with e.repeat_while() as leave_if:
        leave_if(place.get() <= 0)
        leave_if(is_worse(place.get() - 1) ^ 1)
        place.set(place.get() - 1)
    with e.when(place.get() < most):
        found.n.set(e.minimum(found.n.get() + 1, most))
        i = e.variable(found.n.get() - 1)
        with e.repeat_while() as leave_if:
            leave_if(i.get() <= place.get())
            for column in columns:
                e.store(e.load(I64, column(i.get() - 1), 8), column(i.get()), 8)
            i.set(i.get() - 1)
        put(place.get())


def _widen(e: Emitter, found: _List, logits: Value) -> None:
    """Keys to ids and logits."""
    with e.range(0, found.n.get()) as i:
        token = (e.load(I64, found.key(i), 8) & _LOW) ^ _LOW
        e.store(token, found.id(i), 8)
        e.store(e.load(F32, logits + token * 4).to_double(), found.value(i), 8)


def _add_biased(e: Emitter, found: _List, logits: Value, words: list[Value]) -> None:
    """Biased tokens where they belong now; those at -inf are banned."""
    with e.range(0, words[picking.N_BIASES]) as b:
        token = e.load(I64, words[picking.BIAS_IDS] + b * 8, 8)
        bias = e.load(F64, words[picking.BIAS_VALUES] + b * 8, 8)
        biased = e.load(F32, logits + token * 4).to_double() + bias
        lowest, highest = (e.const(F64, sign * _FARTHEST_LOGIT) for sign in (-1, 1))
        held = (biased < lowest).select(lowest, biased)
        held = (held > highest).select(highest, held)

        def is_worse(i: Value, held: Value = held, token: Value = token) -> Value:
            value, other = e.load(F64, found.value(i), 8), e.load(I64, found.id(i), 8)
            return (value < held) | (value.equals(held) & (other > token))

        def put(i: Value, held: Value = held, token: Value = token) -> None:
            e.store(held, found.value(i), 8)
            e.store(token, found.id(i), 8)

        with e.when(biased > float("-inf")):
            _insert(e, found, words[picking.N_BEST], is_worse, put, [found.value, found.id])


def _fill_up(e: Emitter, found: _List) -> None:
    """Idle candidates up to a whole vector: they never win and weigh nothing."""
    n = found.n.get()
    with e.range(n, n + (WIDTH - 1)) as i:
        e.store(e.const(F64, float("-inf")), found.value(i), 8)
        e.store(e.index(0), found.id(i), 8)


# Filters -----------------------------------------------------------------------------------------


def _filter(e: Emitter, found: _List, filters: Value, n_filters: Value, sure: Variable) -> None:
    with e.range(0, n_filters) as f:
        at = filters + f * (8 * picking.FILTER_WORDS)
        kind, count = e.load(I64, at, 8), e.load(I64, at + 16, 8)
        number = e.load(F64, at + 8, 8)
        with e.when(kind.equals(picking.TOP_K)):
            found.n.set(e.minimum(found.n.get(), count))
        with e.when(kind.equals(picking.TOP_P) & (found.n.get() > 1)):
            _top_p(e, found, number, count, sure)
        with e.when(kind.equals(picking.MIN_P)):
            lowest = e.load(F64, found.value(e.index(0)), 8) + number
            _keep(e, found, _count_below(e, found, found.value, lowest, reaching=True), count)
        with e.when(kind.equals(picking.TEMPERATURE)), found.vectors() as i:
            scaled = e.load(F64X8, found.value(i), 8) / e.splat(number, WIDTH)
            e.store(scaled, found.value(i), 8)


def _keep(e: Emitter, found: _List, n: Value, at_least: Value) -> None:
    found.n.set(e.minimum(found.n.get(), e.maximum(n, at_least)))


def _count_below(
    e: Emitter, found: _List, column: Callable[[Value], Value], limit: Value, *, reaching: bool
) -> Value:
    """Of a sorted column: how many lie below the limit, or how many reach it."""
    n = e.variable(e.index(0))
    with e.range(0, found.n.get()) as i:
        value = e.load(F64, column(i), 8)
        n.set(n.get() + (value >= limit if reaching else value < limit).widen(I64))
    return n.get()


def _top_p(e: Emitter, found: _List, p: Value, min_keep: Value, sure: Variable) -> None:
    best = e.splat(e.load(F64, found.value(e.index(0)), 8), WIDTH)
    with found.vectors() as i:
        e.store(exponential(e, e.load(F64X8, found.value(i), 8) - best), found.score(i), 8)
    total = e.variable(e.const(F64, 0.0))
    with e.range(0, found.n.get()) as i:
        total.set(total.get() + e.load(F64, found.score(i), 8))
        e.store(total.get(), found.score(i), 8)
    margin = total.get() * _MARGIN
    wanted = p * total.get()
    fewest = _count_below(e, found, found.score, wanted - margin, reaching=False)
    most = _count_below(e, found, found.score, wanted + margin, reaching=False)
    with e.when(fewest < most):
        sure.set(e.index(0))
    _keep(e, found, fewest + 1, min_keep)


# The draw ----------------------------------------------------------------------------------------


def _draw(e: Emitter, found: _List, words: list[Value], position: Value, result: Variable) -> None:
    """The argmax of logit + noise; of equals the lower id."""
    n, zero = found.n.get(), e.index(0)
    with e.when(n.equals(1)):
        result.set(e.load(I64, found.id(zero), 8))
    highest, lowest = (e.load(F64, found.value(i), 8) for i in (zero, n - 1))
    is_usual = (highest < _SWALLOWS) & (lowest > -_SWALLOWS)
    with e.when((n > 1) & is_usual & (position >> 32).equals(0)):
        key_low, key_high = words[picking.KEY_LOW], words[picking.KEY_HIGH]
        place = (key_low, key_high, position, words[picking.SEQUENCE])
        with found.vectors() as i:
            noise = gumbel(e, philox(e, e.load(I64X8, found.id(i), 8), place))
            e.store(e.load(F64X8, found.value(i), 8) + noise, found.score(i), 8)
        best = e.variable(e.load(F64, found.score(zero), 8))
        token = e.variable(e.load(I64, found.id(zero), 8))
        with e.range(1, n) as i:
            score, other = e.load(F64, found.score(i), 8), e.load(I64, found.id(i), 8)
            is_best = (score > best.get()) | (score.equals(best.get()) & (other < token.get()))
            best.set(is_best.select(score, best.get()))
            token.set(is_best.select(other, token.get()))
        result.set(token.get())
