"""Docstrings in what is trained on: one sentence, or none."""

from __future__ import annotations

import ast
import zipfile
from pathlib import Path

import pytest

from nextn.convert.nano.docstrings import first_sentence, with_short_docstrings
from nextn.convert.nano.packages import read_packages

FILE = '''"""The file.

It has more to say.
"""


class Kept:
    r"""A class that holds
    one value. It may be negative.
    """

    @cached
    def area(self, value):
        """Return the `area`.

        Nothing else.
        """

        # A comment stays.
        return value * value  # and this

    def side(self): """One line."""

    def stub(self):
        """Declared: the
        `body` comes elsewhere."""
'''
SHORT = '''"""The file."""


class Kept:
    """A class that holds one value."""

    @cached
    def area(self, value):
        # A comment stays.
        return value * value  # and this

    def side(self): """One line."""

    def stub(self):
        """Declared: the
        `body` comes elsewhere."""
'''


def test_first_sentences_stay() -> None:
    assert with_short_docstrings(FILE) == SHORT
    assert with_short_docstrings(SHORT) == SHORT


@pytest.mark.parametrize(
    "text",
    [
        "def f(:\n",
        'def f():\n    """Not\n    alone."""; return 1\n',
        'x = """Just\na text."""\n',
    ],
    ids=["no Python", "shares a line", "no docstring"],
)
def test_what_stays_as_it_is(text: str) -> None:
    assert with_short_docstrings(text) == text


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("Return 1.5 times it. Or not.", "Return 1.5 times it."),
        ("No full stop\n\nMore.", "No full stop"),
        ("Broken\n   over lines! Really.", "Broken over lines!"),
        (".. deprecated:: 2", ""),
        ('Quotes "this".', ""),
        ("It goes on and on " * 5, ""),
    ],
)
def test_first_sentence(docstring: str, sentence: str) -> None:
    assert first_sentence(docstring) == sentence


def test_a_docstring_that_is_the_body_is_replaced_by_its_sentence() -> None:
    (made,) = ast.parse(with_short_docstrings('def f():\n    """A.\n\n    B.\n    """\n')).body
    assert isinstance(made, ast.FunctionDef)
    assert ast.get_docstring(made) == "A."


def test_packages_are_read_with_short_ones(tmp_path: Path) -> None:
    text = 'def f():\n    """A.\n\n    B.\n    """\n' + "    return f()\n" * 40
    with zipfile.ZipFile(tmp_path / "p.whl", "w") as archive:
        archive.writestr("a.py", text)
    assert [text for *_, text in read_packages(tmp_path)] == [
        'def f():\n    """A."""\n' + "    return f()\n" * 40
    ]
