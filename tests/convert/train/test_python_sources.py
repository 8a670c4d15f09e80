"""The split: what drafters are trained on is not what they are measured with, nor a copy of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nextn.convert.train.opening_lines import definitions_of
from nextn.convert.train.optimiser import orthogonalise
from nextn.convert.train.python_sources import (
    family,
    is_held_out,
    is_judged,
    read_library,
    training_texts,
)
from nextn.convert.train.training_schedule import STALL, Clock, TrainingBudget
from nextn.core.errors import ConfigError

BODY = "".join(f"def function_number_{i}(first, second):\n    return {i}\n\n" for i in range(9))


def plant(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_families_cross_folders_and_versions() -> None:
    assert family("importlib/metadata.py") == family("importlib/metadata/__init__.py")
    assert family("unittest/test/test_case.py") == family("test/test_unittest/test_case.py")
    assert family("_pydatetime.py") == "pydatetime"
    assert family("json/decoder.py") != family("json/encoder.py")


def test_the_split_is_that_of_the_bundled_model() -> None:
    names = ("bisect.py", "configparser.py", "argparse.py")
    assert [is_held_out(name) for name in names] == [True, True, False]


def test_neither_held_out_files_nor_copies_nor_answers_are_trained_on(tmp_path: Path) -> None:
    kept = BODY.replace("number", "no")
    copied = BODY.replace("function_number_8", "another_function_of_its_own")
    answer = kept + "def fibonacci(n):\n    return n\n"
    files = {"bisect.py": BODY, "copy_of.py": copied, "answer.py": answer, "kept.py": kept}
    assert training_texts(plant(tmp_path, files)) == [kept]
    assert is_judged(answer)
    assert not is_judged(kept)


def test_a_folder_without_sources(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no sources in it; give a folder as lib/pythonX\.Y"):
        training_texts(tmp_path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("site-packages/a.py", BODY),
        ("encodings/a.py", BODY),
        ("a.py", "x = 1\n"),
        ("a.py", BODY + "# Permission to use, copy and modify is granted\n"),
        ("a.py", BODY + "t = [" + "0x12, 345, " * 300 + "]\n"),
    ],
    ids=["installed", "tables", "short", "licence", "numbers"],
)
def test_left_out(name: str, text: str, tmp_path: Path) -> None:
    library = plant(tmp_path, {name: text, "b.py": BODY})
    (library / "c.py").write_bytes(BODY.encode() + b"# \xe9\xff\n")
    assert [file.name for file in read_library(library)] == ["b.py"]


def test_definitions_stand_at_the_left_margin() -> None:
    text = (
        "class A:\n    @property\n    def value(self):\n        return self._some_longer_name\n\n\n"
        'def f(number):\n    """Doubles it."""\n    return number * 2  # or so, more or less\n'
    )
    found = dict(definitions_of(text))
    method, function = (next(x for x in found if x.startswith(y)) for y in ("@prop", "def f"))
    assert found[function] > found[method]
    assert list(definitions_of("def broken(:\n")) == []


def test_schedule() -> None:
    budget = TrainingBudget(tokens=100, rate=0.5)
    assert budget.rate_at(0.0) < 0.1
    assert budget.rate_at(0.3) == 0.5
    assert budget.rate_at(1.0) == 0.0
    assert budget.progress(25, 1e9) == 0.25
    assert TrainingBudget(minutes=2).progress(10**9, 60.0) == 0.5


def test_the_clock_leaves_out_time_stopped() -> None:
    clock = Clock()
    for _ in range(10):
        clock.add(1.0)
    clock.add(600.0)
    assert clock.seconds == 10 + STALL


def test_orthogonal_factor() -> None:
    stack = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalise(stack))
    assert values.min() > 0.5
    assert values.max() < 1.4
