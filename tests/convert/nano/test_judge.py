"""What counts as Python, as empty and as repetition."""

from __future__ import annotations

import pytest

from nextn.convert.nano import judge
from nextn.convert.nano.corpus import first_prompts, has_judged_header, judged_headers
from nextn.convert.nano.judge import Completion


@pytest.mark.parametrize(
    ("text", "ended", "right"),
    [
        ("\n    return n\n", True, True),
        ("\n    return n\n", False, True),
        ("\n    a = 1\n    b = [1,\n", False, True),
        ("\n    a = 1\n    b = [1,\n", True, False),  # the model ended within a list
        ('\n    a = 1\n    """An open', False, True),
        ("\n    a = 1\n    b = 'cut o", False, True),  # only the last line is cut off
        ("\n    a = 1\n    def g(y):\n", False, True),
        ("\n    return n n\n    x = 1\n", False, False),
        ("\n    a = 1\n      b = 2\n    c = 3\n", False, False),
        ("\n  self.n.\n    return 1\n", False, False),
        ("\n", False, False),  # a header alone
        ("", True, False),
        ("\n    # a comment alone\n", False, False),
        ("\n    if n:\n", False, False),  # nothing is complete
        (" return n\n", True, True),
        (" return n", False, True),
    ],
)
def test_what_is_python(text: str, ended: bool, right: bool) -> None:
    assert judge.is_python(Completion("def f(n):", text, ended, 20)) is right


def test_a_prompt_that_is_a_statement_needs_another() -> None:
    assert not judge.is_python(Completion("import os", "\n\n", True, 3))
    assert judge.is_python(Completion("import os", "\nimport sys\n", True, 3))
    assert judge.is_python(Completion("import os", ".path\n", True, 3))


def test_repeats() -> None:
    assert judge.repeats("a\nx = 1\n    x = 1\n\nx = 1\nb")
    assert not judge.repeats("x = 1\nx = 1\ny\nx = 1\n\n\n\n")


def test_shares() -> None:
    good = Completion("def f(n):", "\n    return n\n", True, 9)
    short = Completion("def f(n):", "\n    pass\n", True, 3)
    looping = Completion("def f(n):", "\n    n.n n\n" * 4, False, 64)
    found = judge.shares([good, short, looping, good])
    assert (found.parsing, found.short, found.repeating) == (0.75, 0.25, 0.25)


def test_prompts_are_for_judging_only() -> None:
    prompts = first_prompts()
    assert len(set(prompts)) == len(prompts) == 40
    assert "def fibonacci(n):" in judged_headers()
    assert has_judged_header("class A:\n    def add(a, b):\n        return a + b\n")
    assert not has_judged_header("def main():\n    pass\n")


def test_prompts_can_be_continued() -> None:
    """None has an error before its end."""
    for prompt in first_prompts():
        assert any(judge._has_no_error(prompt + end) for end in ("", "\n", " x\n"))
