"""Places of a text in the order of what stands before them: sorting, merging, inserting.

A text is an array of 32-bit words: tokens, and marks (from `MARK` on) where another text begins.
A *place* is the index of a word; its *context* is the words before it, the newest first, as far
as the nearest mark and no more than `DEPTH` words. Places with a common context are neighbours in
this order, so one binary search finds the longest suffix of a text that occurs in another one.
Equal contexts are in the order of their places.
"""

from __future__ import annotations

from typing import NamedTuple

from llvmlite import ir

from ..emit import I1, I32, I64, POINTER, VOID, Emitter, Value, Variable

MARK = 1 << 31
DEPTH = 32  # words of a context that are compared
_PARTS = 8  # a power of two

SORT = ir.FunctionType(VOID, [I64] * 4)
INSERT = ir.FunctionType(VOID, [I64] * 5)
MERGE = ir.FunctionType(VOID, [I64] * 9)


class Context(NamedTuple):
    words: Value  # address
    place: Value


class ComparedContexts(NamedTuple):
    n_common: Value  # words
    sign: Value  # negative: the first context comes before the second; 0: they are equal


class SortedSide(NamedTuple):
    """One of the two orders that a merge reads."""

    words: Value
    order: Value
    n: Value
    at: Variable  # the next entry
    shift: Value  # added to its places

    def place(self, e: Emitter) -> Value:
        return load_word(e, self.order, self.at.get())


def load_word(e: Emitter, base: Value, index: Value) -> Value:
    return e.load(I32, base + index * 4).widen(I64)


def store_word(e: Emitter, value: Value, base: Value, index: Value) -> None:
    e.store(value.narrow(I32), base + index * 4)


def compare(e: Emitter, a: Context, b: Context, longest: Value | int) -> ComparedContexts:
    """Two contexts, as far as `longest` words. No word before the first one of a text is read,
    whatever the places are."""
    limit = e.minimum(e.minimum(a.place, b.place), longest)
    n, sign = e.variable(e.index(0)), e.variable(e.index(0))
    with e.repeat_while() as leave_if:
        i = n.get()
        leave_if(i >= limit)
        x = load_word(e, a.words, a.place - 1 - i)
        y = load_word(e, b.words, b.place - 1 - i)
        is_same = x.equals(y)
        sign.set(is_same.select(e.index(0), (x < y).select(e.index(-1), e.index(1))))
        leave_if((is_same ^ 1) | (x >= MARK))
        n.set(i + 1)
    return ComparedContexts(n.get(), sign.get())


class OrderedText(NamedTuple):
    words: Value
    n_words: Value
    order: Value
    n: Value  # entries of the order

    def context(self, e: Emitter, entry: Value) -> Context:
        """Of an entry. An order that was read from a file may hold any number."""
        place = load_word(e, self.order, entry)
        return Context(self.words, e.minimum(place, self.n_words))


def find_end(e: Emitter, text: OrderedText, wanted: Context) -> Value:
    """The number of entries whose context is not behind the wanted one.

    In a large text nearly each comparison waits for memory, for an entry and then for the words
    before its place. So what the next comparisons could need is fetched at once: an eighth of
    the search has three comparisons and waits twice.
    """
    low, high = e.variable(e.index(0)), e.variable(text.n)
    with e.repeat_while() as leave_if:
        size = high.get() - low.get()
        leave_if(size < 2 * _PARTS)
        first, step = low.get(), _divided(size)
        _fetch(e, text, first + step, step, e.index(_PARTS - 1))
        left, right = e.variable(e.index(0)), e.variable(e.index(_PARTS))
        with e.repeat_while() as leave_parts_if:
            leave_parts_if(right.get() - left.get() < 2)
            middle = (left.get() + right.get()) >> 1
            is_behind = _is_behind(e, text, first + middle * step, wanted)
            right.set(is_behind.select(middle, right.get()))
            left.set(is_behind.select(left.get(), middle))
        before, behind = left.get(), right.get()
        low.set((before > 0).select(first + before * step + 1, first))
        high.set((behind < _PARTS).select(first + behind * step, high.get()))
    _fetch(e, text, low.get(), e.index(1), high.get() - low.get())
    with e.repeat_while() as leave_if:
        leave_if(low.get() >= high.get())
        middle = (low.get() + high.get()) >> 1
        is_behind = _is_behind(e, text, middle, wanted)
        high.set(is_behind.select(middle, high.get()))
        low.set(is_behind.select(low.get(), middle + 1))
    return low.get()


def _divided(size: Value) -> Value:
    return size >> (_PARTS.bit_length() - 1)


def _is_behind(e: Emitter, text: OrderedText, entry: Value, wanted: Context) -> Value:
    return compare(e, text.context(e, entry), wanted, DEPTH).sign > 0


def _fetch(e: Emitter, text: OrderedText, first: Value, step: Value, n: Value) -> None:
    """Begin to load `n` entries, and then the words before their places."""
    with e.range(0, n) as i:
        e.prefetch(text.order + (first + i * step) * 4, level=1)
    with e.range(0, n) as i:
        place = text.context(e, first + i * step).place
        e.prefetch(text.words + (place - 1) * 4, level=1)


def write_sort(e: Emitter) -> None:
    """Arguments: words, order (ascending places; it becomes sorted), room for another order, n."""
    words, order, room, n = e.parameters
    source, target, width = e.variable(order), e.variable(room), e.variable(e.index(1))
    zero = e.index(0)
    with e.repeat_while() as leave_if:
        leave_if(width.get() >= n)
        start = e.variable(zero)
        with e.repeat_while() as leave_pass_if:
            first = start.get()
            leave_pass_if(first >= n)
            middle = e.minimum(first + width.get(), n)
            end = e.minimum(middle + width.get(), n)
            a = SortedSide(words, source.get(), middle, e.variable(first), zero)
            b = SortedSide(words, source.get(), end, e.variable(middle), zero)
            _merge(e, a, b, target.get() + first * 4, end - first)
            start.set(end)
        swapped = source.get()
        source.set(target.get())
        target.set(swapped)
        width.set(width.get() * 2)
    with e.when(source.get().equals(order) ^ 1):
        _copy_bytes(e, "llvm.memcpy.p0.p0.i64", order, room, n * 4)
    e.finish()


def write_merge(e: Emitter) -> None:
    """Some entries of a merge. Arguments: words and order of the first text, words and order of
    the second, what to add to places of the second, the sizes of both orders, where to write, and
    the address of three words: entries read of each, and how many to write."""
    words_a, order_a, words_b, order_b, shift, n_a, n_b, out, at = e.parameters
    read_a, read_b, n_out = e.words(at, 3)
    a = SortedSide(words_a, order_a, n_a, e.variable(read_a), e.index(0))
    b = SortedSide(words_b, order_b, n_b, e.variable(read_b), shift)
    _merge(e, a, b, out, n_out)
    e.store(a.at.get(), at, 8)
    e.store(b.at.get(), at + 8, 8)
    e.finish()


def write_insert(e: Emitter) -> None:
    """New places of a growing text. Arguments: words, order, its size, the first new place, and
    the one behind the last."""
    words, order, n, first, last = e.parameters
    with e.range(first, last) as place:
        size = n + (place - first)
        at = find_end(e, OrderedText(words, last, order, size), Context(words, place))
        from_here = order + at * 4
        _copy_bytes(e, "llvm.memmove.p0.p0.i64", from_here + 4, from_here, (size - at) * 4)
        store_word(e, place, order, at)
    e.finish()


def _merge(e: Emitter, a: SortedSide, b: SortedSide, out: Value, n_out: Value) -> None:
    """Write `n_out` entries; as many are left of both together."""
    with e.range(0, n_out) as i:
        takes_b = e.variable(e.const(I1, 1))
        with e.when(a.at.get() < a.n):
            takes_b.set(e.const(I1, 0))
            with e.when(b.at.get() < b.n):
                contexts = Context(a.words, a.place(e)), Context(b.words, b.place(e))
                takes_b.set(compare(e, *contexts, DEPTH).sign > 0)
        for side, is_taken in ((b, takes_b.get()), (a, takes_b.get() ^ 1)):
            with e.when(is_taken):
                store_word(e, side.place(e) + side.shift, out, i)
                side.at.set(side.at.get() + 1)


def _copy_bytes(e: Emitter, how: str, target: Value, source: Value, n_bytes: Value) -> None:
    ends = [Value(e.builder, e.builder.inttoptr(at.v, POINTER)) for at in (target, source)]
    e.call(how, VOID, *ends, n_bytes, e.const(I1, 0))
