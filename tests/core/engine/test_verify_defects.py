"""Verification does not have the defects that llama.cpp's has; and a broken one is noticed.

The names are those of the list in docs/verification.md.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted import (
    END,
    PROMPT,
    SMALL,
    Oracle,
    ScriptedBackend,
    drain,
    made,
    make_engine,
    params,
    write_alone,
)
from support.verifying import (
    HOW,
    Replacing,
    at,
    before,
    compare,
    without_source,
    write,
)

from nextn.core.backend.interface import HostOutput
from nextn.core.engine.sequence import SequenceRows
from nextn.core.engine.verify import MatchVerifier
from nextn.core.errors import NonFiniteError
from nextn.core.generation import EOS, ERROR, TARGET
from nextn.core.speculation.draft import Draft, DraftRequest


def prompt_that_ends() -> tuple[list[int], list[int]]:
    for first in range(END):
        text = write_alone([first, 1], params(20), hybrid=False, n_ctx=48).tokens
        if text[-1] == END and len(text) > 8:
            return [first, 1], text
    raise AssertionError("no such prompt")


@pytest.mark.parametrize("length", range(1, 5))
def test_d12_the_end_at_every_place_of_a_draft(length: int) -> None:
    """Drafts go on behind the end: nothing of that is shown, counted or kept."""
    prompt, text = prompt_that_ends()
    for skip in range(length + 1):
        oracle = Oracle(before(skip + 1), length)
        engine = make_engine(drafter=oracle)
        sequence = engine.add(prompt, params(20))
        oracle.texts[0] = [*prompt, *text, 1, 2, 3, 4]
        events = drain(engine)
        assert made(sequence) == text
        assert [event.stop_reason for event in events] == [None] * (len(text) - 1) + [EOS]
        assert sequence.stats.predicted_n == len(text)
        assert sequence.stats.draft_n_accepted == sum(event.source != TARGET for event in events)


@pytest.mark.parametrize("place", range(4))
def test_d12_an_end_that_the_target_does_not_write(place: int) -> None:
    how = HOW["sampled"]
    want, texts, _ = write([how], None, hybrid=False)
    assert END not in texts[0]

    got, _, _ = write([how], Replacing(place, END, length=4), hybrid=False, texts=texts)
    assert without_source(got[0]) == want[0]


@pytest.mark.parametrize("wrong", range(5))
def test_a11_logprobs_of_verified_tokens(wrong: int) -> None:
    """They are there, and those of plain decoding to the last bit."""
    (sequence,) = compare([params(20, logprobs=3)], at(wrong))
    assert sequence.stats.draft_n
    want = write_alone(PROMPT, params(20), hybrid=False, n_ctx=48)
    got = [event.logprob for event in write([params(20, logprobs=0)], None, hybrid=False)[0][0]]
    assert got == want.logprobs


class Greedy(Oracle):
    """Drafts far more than it was asked for."""

    def _draft(self, ask: DraftRequest) -> Draft:
        assert ask.max_draft > 0
        return Draft([1] * 1000, ["greedy"] * 1000)


def test_b2_drafts_never_exceed_the_rows_of_a_step() -> None:
    """Three texts with endless drafts while prompts arrive; the backend counts the rows too."""
    for chunk in (4, 8):
        backend = ScriptedBackend(hybrid=True)
        engine = make_engine(backend=backend, drafter=Greedy(), chunk=chunk)
        sequences = [engine.add([*PROMPT, i], params(9, ignore_eos=True)) for i in range(7)]
        drain(engine)
        assert max(backend.rows) <= engine.config.max_rows
        assert all(len(made(sequence)) == 9 for sequence in sequences)


@pytest.mark.parametrize("n", [1, 2])
def test_c7_no_room_means_no_draft(n: int) -> None:
    """One token is missing: nobody is asked, instead of asked without a limit."""
    oracle = Oracle()
    engine = make_engine(drafter=oracle)
    sequence = engine.add(PROMPT, params(n))
    oracle.texts[0] = [*PROMPT, *[1] * 30]
    drain(engine)
    assert oracle.n_drafts == 0
    assert sequence.stats.draft_n == sequence.stats.drafts == 0


def test_c7_no_window_means_no_draft() -> None:
    sizes = SMALL.__class__(48, n_slots=1, n_checkpoints=0, page_len=4, window=1)
    oracle = Oracle()
    engine = make_engine(sizes=sizes, drafter=oracle)
    engine.add(PROMPT, params(9))
    drain(engine)
    assert oracle.n_drafts == 0


@pytest.mark.parametrize("wrong", range(5))
def test_c6_drafters_are_told_what_was_kept(wrong: int) -> None:
    """Not one more: the target's own token behind the draft is none of its tokens."""
    how = params(30, ignore_eos=True)
    _, texts, _ = write([how], None, hybrid=False)
    oracle = Oracle(at(wrong), length=4)
    _, _, (sequence,) = write([how], oracle, hybrid=False, texts=texts)
    stats = sequence.stats
    assert {n for _, n in oracle.settled[:-1]} == {wrong}
    assert sum(n for _, n in oracle.settled) == stats.draft_n_accepted
    assert stats.drafts == len(oracle.settled)
    assert stats.draft_per_pos[0] == stats.drafts
    assert sum(stats.draft_per_pos) == stats.draft_n
    assert stats.accept_rates[:wrong] == [1.0] * wrong
    assert set(stats.accept_rates[wrong:]) <= {0.0}


# A verifier that is broken has to be noticed ----------------------------------------------------


def broken(
    *,
    believes: bool = False,
    first_row: bool = False,
    keeps_going: bool = False,
    shows_draft: bool = False,
    picks_ahead: bool = False,
    one_short: bool = False,
    one_more: bool = False,
    is_late: bool = False,
) -> Any:
    """The accept of `Match`, with one fault."""

    def accept(self: MatchVerifier, part: SequenceRows, output: HostOutput, first: int) -> int:
        sequence, draft, n_made = part.sequence, part.draft, 0
        drafted, is_hit = draft.tokens, True
        try:
            ahead = [
                sequence.pick(output, first + i) for i in range(len(drafted) + 1) if picks_ahead
            ]
            while is_hit and (sequence.stop_reason is None or keeps_going):
                row = first if first_row else first + n_made
                token = ahead[n_made] if picks_ahead else sequence.pick(output, row)
                is_hit = n_made < len(drafted) and (drafted[n_made] == token or believes)
                if n_made < len(drafted) and (believes or shows_draft):
                    token = drafted[n_made]
                if is_late and n_made and not is_hit:
                    break
                source = draft.sources[n_made] if is_hit else TARGET
                sequence.emit(token, output, row, source)
                n_made += 1
        except NonFiniteError as error:
            sequence.end(ERROR, error)
        part.n_accepted = n_made if is_hit else n_made - 1
        return n_made - one_short * (n_made > 1) + one_more * (n_made <= len(drafted))

    return accept


def everything() -> None:
    """A short form of the tests above: one of them has to notice."""
    for wrong in range(5):
        for name in ("greedy", "sampled", "penalties", "mirostat", "stop"):
            compare([HOW[name]], at(wrong))
        compare([HOW["greedy"]], at(wrong), hybrid=True)
    test_d12_the_end_at_every_place_of_a_draft(4)
    test_c6_drafters_are_told_what_was_kept(2)


FAULTS = [
    "believes", "first_row", "keeps_going", "shows_draft", "picks_ahead", "one_short", "one_more",
    "is_late",
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_verifier_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MatchVerifier, "accept", broken(**{fault: True}))
    with pytest.raises((AssertionError, IndexError)):
        everything()


def test_a_verifier_that_is_not_broken_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is the fault that is noticed above, not the rewriting."""
    monkeypatch.setattr(MatchVerifier, "accept", broken())
    everything()
