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
from .noise_kernel import F64X8, I64X8, WIDTH, exponential, gumbel, philox

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
class Head:
    """A row of logits. Its places are the first tokens, or `taken` says which ones, ascending:
    what is better by place is so by token, too."""

    logits: Value
    maxima: Value
    n: Value
    vocab_subset: Value | None = None  # token of each place
    is_whole: bool = False  # every token that a request may name has its place

    @property
    def n_blocks(self) -> Value:
        return (self.n + (MAXIMA_BLOCK - 1)) // MAXIMA_BLOCK

    def logit(self, e: Emitter, place: Value) -> Value:
        return e.load(F32, self.logits + place * 4)

    def token(self, e: Emitter, place: Value) -> Value:
        return place if self.vocab_subset is None else e.load(I64, self.vocab_subset + place * 8, 8)

    def place(self, e: Emitter, token: Value) -> tuple[Value, Value]:
        """Some place that exists, and whether it is this token's."""
        if self.vocab_subset is None:
            is_there = token < self.n
            return is_there.select(token, e.index(0)), is_there
        low, high = e.variable(e.index(0)), e.variable(self.n - 1)
        with e.repeat_while() as leave_if:
            leave_if(low.get() >= high.get())
            middle = (low.get() + high.get()) >> 1
            is_before = e.load(I64, self.vocab_subset + middle * 8, 8) < token
            low.set(is_before.select(middle + 1, low.get()))
            high.set(is_before.select(high.get(), middle))
        return low.get(), e.load(I64, self.vocab_subset + low.get() * 8, 8).equals(token)


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
    n_vocab = e.load(I64, request + 8 * picking.N_VOCAB, 8)
    head = Head(logits, maxima, n_vocab, is_whole=True)
    best = largest(e, maxima, head.n_blocks)
    e.finish(pick_token(e, head, best, (request, scratch, position)))


def pick_token(e: Emitter, head: Head, best: Value, call: tuple[Value, Value, Value]) -> Value:
    """`best`: of the maxima; `call`: request, scratch, position."""
    request, scratch, position = call
    words = e.words(request, picking.FIRST_FILTER)
    result = e.variable(e.index(picking.UNSURE))
    with e.when((best.bits(I32) & _INFINITE) < _INFINITE):
        wanted = words[picking.N_BEST] + words[picking.N_BIASES]
        # So many of the best blocks hold the best tokens; where there are few blocks, look closer.
        is_long = head.n_blocks > wanted
        values = is_long.select(head.maxima, head.logits)
        n_values = is_long.select(head.n_blocks, head.n)
        floor = _floor(e, values, n_values, wanted, best)
        found = _List(e, scratch, e.variable(e.index(0)))
        _collect(e, found, head, words, floor)
        _widen(e, found, head)
        _add_biased(e, found, head, words)
        sure = e.variable((found.n.get() > 0).widen(I64))
        _fill_up(e, found)
        _filter(e, found, request + 8 * picking.FIRST_FILTER, words[picking.N_FILTERS], sure)
        with e.when(sure.get() > 0):
            _draw(e, found, words, position, result)
    return result.get()


# The best of a row -------------------------------------------------------------------------------


def largest(e: Emitter, values: Value, n: Value) -> Value:
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


def _collect(e: Emitter, found: _List, head: Head, words: list[Value], floor: Variable) -> None:
    """The `N_BEST` best of the tokens without a bias, as sort keys.

    A key is the logit, in the order of integers, above the complement of the place: of equal logits
    the lower id is the better one. `+ 0.0` makes both zeros equal.
    """

    def consider(place: Value) -> None:
        logit = head.logit(e, place)
        key = (_ordered(logit + 0.0).widen(I64, signed=True) << 32) | (place ^ _LOW)
        with e.when(_is_biased(e, head.token(e, place), words) ^ 1):
            _insert_key(e, found, key, words[picking.N_BEST])
        with e.when(found.n.get().equals(words[picking.N_BEST])):
            last = e.load(I64, found.key(found.n.get() - 1), 8)
            worst = _ordered((last >> 32).narrow(I32)).bits(F32)
            floor.set((worst > floor.get()).select(worst, floor.get()))

    def scan(block: Value) -> None:
        start = block * MAXIMA_BLOCK
        n = e.minimum(head.n - start, MAXIMA_BLOCK)
        _each_reaching(e, head.logits + start * 4, n, floor, lambda i: consider(start + i))

    _each_reaching(e, head.maxima, head.n_blocks, floor, scan)


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


def _widen(e: Emitter, found: _List, head: Head) -> None:
    """Keys to ids and logits."""
    with e.range(0, found.n.get()) as i:
        place = (e.load(I64, found.key(i), 8) & _LOW) ^ _LOW
        e.store(head.token(e, place), found.id(i), 8)
        e.store(head.logit(e, place).to_double(), found.value(i), 8)


def _add_biased(e: Emitter, found: _List, head: Head, words: list[Value]) -> None:
    """Biased tokens where they belong now; those at -inf are banned, as are those without place."""
    with e.range(0, words[picking.N_BIASES]) as b:
        token = e.load(I64, words[picking.BIAS_IDS] + b * 8, 8)
        bias = e.load(F64, words[picking.BIAS_VALUES] + b * 8, 8)
        place, is_there = (token, None) if head.is_whole else head.place(e, token)
        biased = head.logit(e, place).to_double() + bias
        if is_there is not None:
            biased = is_there.select(biased, e.const(F64, float("-inf")))
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
