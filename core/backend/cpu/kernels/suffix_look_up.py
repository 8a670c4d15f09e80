"""The longest suffix of a text that occurs in other texts, and what followed it there."""

from __future__ import annotations

from llvmlite import ir

from ..emit import I64, VOID, Emitter, Value, Variable
from .suffix_order import DEPTH, Context, OrderedText, compare, find_end, load_word

MAX_PLACES = 16  # occurrences that have a vote
MAX_TOKENS = 64
# Words of the result: the length of the match, the text it was found in, occurrences that have a
# vote, tokens; then of each token its id, the votes for it, and all votes.
MATCHED, WHERE, N_PLACES, N_TOKENS, FIRST_TOKEN = range(5)
RESULT_WORDS = FIRST_TOKEN + 3 * MAX_TOKENS
# Words of a text: address and number of its words, address and size of its order.
TEXT_WORDS = 4

LOOK_UP = ir.FunctionType(VOID, [I64] * 8)


def write_look_up(e: Emitter) -> None:
    """Arguments: words of the text that goes on, how many there are, the texts to look in and
    their number, the shortest match, the most tokens, the first word that is no token, the result.

    The first of the texts with the longest match counts; there may be none. What follows is the
    most frequent word of up to `MAX_PLACES` occurrences, and then of those that it followed; of
    equals the one that came last.
    """
    words, end, texts, n_texts, least, n_max, n_vocab, result = e.parameters
    wanted = Context(words, end)
    longest, where, entry = (e.variable(e.index(0)) for _ in range(3))
    with e.range(0, n_texts) as i, e.when(longest.get() < DEPTH):  # no match is longer
        text = _text(e, texts, i)
        at = find_end(e, text, wanted)
        with e.when(at > 0):
            _keep_longer(e, text, at - 1, wanted, (longest, where, entry), i)
        with e.when(at < text.n):
            _keep_longer(e, text, at, wanted, (longest, where, entry), i)
    n_matched = longest.get()
    for word, value in ((MATCHED, n_matched), (WHERE, where.get())):
        e.store(value, result + 8 * word, 8)
    for word in (N_PLACES, N_TOKENS):
        e.store(e.index(0), result + 8 * word, 8)
    with e.when((n_matched >= least) & (n_matched > 0)):
        text = _text(e, texts, where.get())
        places = e.scratch(I64, MAX_PLACES)
        n_places = _gather(e, text, wanted, entry.get(), n_matched, places)
        e.store(n_places, result + 8 * N_PLACES, 8)
        _follow(e, text, wanted, (places, n_places), n_max, n_vocab, result)
    e.finish()


def _text(e: Emitter, texts: Value, i: Value) -> OrderedText:
    return OrderedText(*e.words(texts + i * (8 * TEXT_WORDS), TEXT_WORDS))


def _keep_longer(
    e: Emitter,
    text: OrderedText,
    entry: Value,
    wanted: Context,
    best: tuple[Variable, Variable, Variable],
    number: Value,
) -> None:
    longest, where, best_entry = best
    n = compare(e, text.context(e, entry), wanted, DEPTH).n_common
    with e.when(n > longest.get()):
        longest.set(n)
        where.set(number)
        best_entry.set(entry)


def _gather(
    e: Emitter, text: OrderedText, wanted: Context, entry: Value, n_matched: Value, places: Value
) -> Value:
    """Places with this match around an entry that has it: those before it, the nearest first,
    which are the latest if contexts are equal; then those behind it. Returns their number."""
    n = e.variable(e.index(0))
    for first, step in ((entry, -1), (entry + 1, 1)):
        i = e.variable(first)
        with e.repeat_while() as leave_if:
            at = i.get()
            leave_if((at < 0) | (at >= text.n) | (n.get() >= MAX_PLACES))
            context = text.context(e, at)
            leave_if(compare(e, context, wanted, n_matched).n_common < n_matched)
            e.store(context.place, places + n.get() * 8, 8)
            n.set(n.get() + 1)
            i.set(at + step)
    return n.get()


def _follow(
    e: Emitter,
    text: OrderedText,
    wanted: Context,
    found: tuple[Value, Value],
    n_max: Value,
    n_vocab: Value,
    result: Value,
) -> None:
    """The words after the places. Those after the end of the text that goes on are the result's:
    it is taken to repeat itself."""
    places, n_places = found
    is_own = text.words.equals(wanted.words)
    nexts = e.scratch(I64, MAX_PLACES)  # words after the places; negative: none
    live = e.variable(n_places)
    out = e.variable(e.index(0))
    with e.repeat_while() as leave_if:
        n_out = out.get()
        leave_if(n_out >= n_max)
        n_votes = e.variable(e.index(0))
        with e.range(0, live.get()) as i:
            after = _word_after(e, text, e.load(I64, places + i * 8, 8), n_out, is_own, result)
            is_token = (after >= 0) & (after < n_vocab)
            e.store(is_token.select(after, e.index(-1)), nexts + i * 8, 8)
            n_votes.set(is_token.select(n_votes.get() + 1, n_votes.get()))
        leave_if(n_votes.get().equals(0))
        best, count = _most_frequent(e, nexts, places, live.get())
        row = result + (n_out * 24 + 8 * FIRST_TOKEN)
        for word, value in enumerate((best, count, n_votes.get())):
            e.store(value, row + 8 * word, 8)
        live.set(_keep_those(e, nexts, places, live.get(), best))
        out.set(n_out + 1)
    e.store(out.get(), result + 8 * N_TOKENS, 8)


def _word_after(
    e: Emitter, text: OrderedText, place: Value, n_out: Value, is_own: Value, result: Value
) -> Value:
    at = place + n_out
    word = e.variable(e.index(-1))
    with e.when(at < text.n_words):
        word.set(load_word(e, text.words, at))
    # A place of a valid order is before the end, so that this word has been written.
    beyond = at - text.n_words
    with e.when(is_own & (beyond >= 0) & (beyond < n_out)):
        word.set(e.load(I64, result + (beyond * 24 + 8 * FIRST_TOKEN), 8))
    return word.get()


def _most_frequent(e: Emitter, nexts: Value, places: Value, n: Value) -> tuple[Value, Value]:
    """(word, votes)"""
    best, votes, latest = (e.variable(e.index(-1)) for _ in range(3))
    with e.range(0, n) as i:
        word, place = e.load(I64, nexts + i * 8, 8), e.load(I64, places + i * 8, 8)
        with e.when((word >= 0) & (word.equals(best.get()) ^ 1)):
            count, last = e.variable(e.index(0)), e.variable(place)
            with e.range(i, n) as j:
                is_same = e.load(I64, nexts + j * 8, 8).equals(word)
                count.set(is_same.select(count.get() + 1, count.get()))
                other = e.load(I64, places + j * 8, 8)
                last.set((is_same & (other > last.get())).select(other, last.get()))
            is_better = (count.get() > votes.get()) | (
                count.get().equals(votes.get()) & (last.get() > latest.get())
            )
            best.set(is_better.select(word, best.get()))
            votes.set(is_better.select(count.get(), votes.get()))
            latest.set(is_better.select(last.get(), latest.get()))
    return best.get(), votes.get()


def _keep_those(e: Emitter, nexts: Value, places: Value, n: Value, word: Value) -> Value:
    """Keep the places that the word followed; returns their number."""
    kept = e.variable(e.index(0))
    with e.range(0, n) as i, e.when(e.load(I64, nexts + i * 8, 8).equals(word)):
        e.store(e.load(I64, places + i * 8, 8), places + kept.get() * 8, 8)
        kept.set(kept.get() + 1)
    return kept.get()
