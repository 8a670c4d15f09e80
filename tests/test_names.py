"""Names and words: one file name and one class name for one idea, and plain words for it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "convert", "core", "cuda_kernels")
# One contract that several kinds of machines carry out: the same file name says so.
MACHINES = "interface", "reference", "cpu", "cuda"
CONTRACTS = {
    "backend", "block_draft", "device_loop", "draft_loop", "ops", "runner", "state", "weights",
}  # fmt: skip
NOT_PERSONS = re.compile(r"\b(nobody|somebody|whoever|told)\b", re.IGNORECASE)


def sources(root: Path, *suffixes: str) -> Iterator[Path]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in suffixes and path.is_file():
                yield path


def file_names(root: Path) -> list[tuple[str, str]]:
    """(name, path); implementations of one contract count as one."""
    found = []
    for path in sources(root, ".py"):
        where = path.relative_to(root)
        if path.stem.startswith("__"):
            continue
        is_contract = path.stem in CONTRACTS and (
            (
                where.parts[:2] == ("core", "backend")
                and (len(where.parts) == 3 or where.parts[2:-1] in [(each,) for each in MACHINES])
            )
            or where.parts[:2] == ("core", "ranks")
        )
        if not is_contract:
            found.append((path.stem, where.as_posix()))
        elif where.parts[-2] == "interface":
            found.append((path.stem, "core/backend"))
    return found


def class_names(root: Path) -> list[tuple[str, str]]:
    return [
        (node.name, path.relative_to(root).as_posix())
        for path in sources(root, ".py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def reused(names: list[tuple[str, str]]) -> list[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for name, where in names:
        places[name].append(where)
    return [f"{name}: {', '.join(each)}" for name, each in places.items() if len(each) > 1]


def words_for_persons(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root).as_posix()}:{number}: {found[0]}"
        for path in sources(root, ".py", ".cu", ".cuh")
        if "prompts" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if (found := NOT_PERSONS.search(line))
    ]


def test_a_file_name_means_one_thing() -> None:
    assert not reused(file_names(ROOT))


def test_a_class_name_means_one_thing() -> None:
    assert not reused(class_names(ROOT))


def test_parts_of_the_program_are_no_persons() -> None:
    assert not words_for_persons(ROOT)


@pytest.mark.parametrize("place", ["core/state/table.py", "core/backend/cpu/kernels/state.py"])
def test_a_reused_file_name_is_found(place: str, tmp_path: Path) -> None:
    for name in ("core/backend/interface/state.py", "core/backend/cpu/state.py", "cli/table.py"):
        plant(tmp_path / name, "")
    assert not reused(file_names(tmp_path))
    plant(tmp_path / place, "")
    assert len(reused(file_names(tmp_path))) == 1


def test_a_reused_class_name_is_found(tmp_path: Path) -> None:
    plant(tmp_path / "core/one.py", "class Row: ...\nclass _Own: ...\n")
    plant(tmp_path / "core/two.py", "class Column: ...\nclass _Own: ...\n")
    assert not reused(class_names(tmp_path))
    plant(tmp_path / "cli/three.py", "class Row: ...\n")
    assert reused(class_names(tmp_path)) == ["Row: cli/three.py, core/one.py"]


def test_a_person_is_found(tmp_path: Path) -> None:
    plant(tmp_path / "core/one.py", "# The backend is called.\n")
    assert not words_for_persons(tmp_path)
    plant(tmp_path / "cuda_kernels/one.cu", "// Nob" + "ody reads this row.\n")
    assert len(words_for_persons(tmp_path)) == 1


def plant(path: Path, source: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
