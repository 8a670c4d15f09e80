"""What is left of an n-gram draft that was right is the next draft, where steps are quick."""

from __future__ import annotations

import pytest
from support.ngrams import ANY

from nextn.core.speculation.interface import Draft, DraftRequest
from nextn.core.speculation.run import LONGEST, Run

TEXT = [1, 2, 3]
WHOLE = list(range(10, 74))


def a_run(n: int, whole: list[int] = WHOLE) -> Run:
    draft = Draft(
        whole, ["ngram"] * len(whole), chances=[0.5 + i / 1000 for i in range(len(whole))]
    )
    return Run(DraftRequest(0, TEXT, 64, ANY), draft, n)


def following(run: Run, text: list[int], max_draft: int = 64) -> list[int] | None:
    draft = run.next(DraftRequest(0, text, max_draft, ANY))
    if draft is None:
        return None
    assert len(draft.sources) == len(draft.chances) == len(draft.tokens)
    return draft.tokens


def test_parts_are_twice_as_long_each_time_and_leave_nothing_out() -> None:
    run, text, n = a_run(3), TEXT + WHOLE[:4], 3
    while (part := following(run, text)) is not None:
        assert len(part) == min(2 * n + 1, LONGEST, len(WHOLE) - (len(text) - len(TEXT)))
        n = len(part)
        assert part == WHOLE[len(text) - len(TEXT) :][:n]
        text = TEXT + WHOLE[: len(text) - len(TEXT) + n + 1]
    assert text == TEXT + WHOLE  # the target's own tokens were those of the run, too


@pytest.mark.parametrize("written", [WHOLE[:3], [*WHOLE[:3], 99], [99, *WHOLE[1:4]], WHOLE[:5], []])
def test_a_text_that_went_otherwise_has_left_the_run(written: list[int]) -> None:
    assert following(a_run(3), TEXT + written) is None


def test_a_later_part_that_was_wrong() -> None:
    run = a_run(3)
    assert following(run, TEXT + WHOLE[:4]) == WHOLE[4:11]
    assert following(run, [*TEXT, *WHOLE[:11], 99]) is None


def test_at_its_end_there_is_nothing_left_to_draft() -> None:
    assert following(a_run(3, WHOLE[:5]), TEXT + WHOLE[:4]) is None  # one token: not worth it
    assert following(a_run(5, WHOLE[:5]), [*TEXT, *WHOLE[:5], 7]) is None


def test_limits_of_an_ask_are_kept() -> None:
    assert following(a_run(7), TEXT + WHOLE[:8], max_draft=4) == WHOLE[8:12]
    assert following(a_run(7), TEXT + WHOLE[:8], max_draft=1) is None
