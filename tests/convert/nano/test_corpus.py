"""What is gathered, what is left out, and that the two halves of the split do not meet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nextn.convert.nano import corpus, held_out
from nextn.convert.nano.corpus import family, gather, in_held_out_part
from nextn.core.errors import ConfigError

BODY = "".join(f"def function_number_{i}(first, second):\n    return first\n\n" for i in range(9))


def plant(root: Path, version: str, files: dict[str, str]) -> Path:
    library = root / f"{version}.0" / "lib" / f"python{version}"
    for name, text in files.items():
        path = library / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return library


def test_families_cross_folders_and_versions() -> None:
    assert family("importlib/metadata.py") == family("importlib/metadata/__init__.py")
    assert family("unittest/test/test_case.py") == family("test/test_unittest/test_case.py")
    assert family("_pydatetime.py") == "pydatetime"
    assert family("json/decoder.py") != family("json/encoder.py")


def test_the_split_is_stable_and_committed() -> None:
    assert [in_held_out_part(n) for n in ("bisect", "configparser", "argparse")] == [1, 1, 0]
    names = json.loads(held_out.LIST.read_text())
    assert len(names) > 30
    assert names == sorted(names)
    for label in names:
        version, _, name = label.partition("/")
        assert version.count(".") == 2
        assert in_held_out_part(family(name))


def test_held_out_files_come_from_the_newest_version_alone(tmp_path: Path) -> None:
    old = plant(tmp_path, "3.8", {"a.py": BODY, "secret.py": BODY.replace("first", "x")})
    new = plant(tmp_path, "3.9", {"a.py": BODY, "sub/_secret.py": BODY.replace("first", "y")})
    made = gather([old, new], is_held_out=lambda name: name == "secret")
    assert [file.label for file in made.train] == ["3.9.0/a.py"]
    assert [file.label for file in made.held_out] == ["3.9.0/sub/_secret.py"]


def test_copies_of_held_out_text_are_not_trained_on(tmp_path: Path) -> None:
    copied = BODY.replace("function_number_8", "another_function_of_its_own")
    library = plant(tmp_path, "3.9", {"copy.py": copied, "kept.py": BODY.replace("number", "no")})
    plant(tmp_path, "3.9", {"secret.py": BODY})
    made = gather([library], is_held_out=lambda name: name == "secret")
    assert [file.name for file in made.train] == ["kept.py"]


def test_older_versions_bring_only_what_is_new(tmp_path: Path) -> None:
    changed = BODY.replace("function_number_8", "another_function_of_its_own")
    old = plant(tmp_path, "3.8", {"a.py": changed, "gone.py": BODY.replace("number", "no")})
    new = plant(tmp_path, "3.9", {"a.py": BODY})
    made = gather([old, new], is_held_out=lambda _: False)
    assert {file.label for file in made.train} == {"3.9.0/a.py", "3.8.0/gone.py"}


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
    library = plant(tmp_path, "3.9", {name: text, "b.py": BODY})
    assert [file.name for file in corpus.read_library(library)] == ["b.py"]


def test_undecodable_files_are_left_out(tmp_path: Path) -> None:
    library = plant(tmp_path, "3.9", {"b.py": BODY})
    (library / "a.py").write_bytes(BODY.encode() + b"# \xe9\xff\n")
    assert [file.name for file in corpus.read_library(library)] == ["b.py"]


def test_help_topics(tmp_path: Path) -> None:
    library = plant(tmp_path, "3.9", {"pydoc_data/topics.py": "topics = {'b': ' B\\n', 'a': 'A'}"})
    assert corpus.help_topics(library) == ["A\n", "B\n"]
    assert corpus.help_topics(tmp_path) == []


def test_held_out_files_of_another_version_are_refused(tmp_path: Path) -> None:
    library = plant(tmp_path, "3.9", {"a.py": BODY, "b.py": BODY + "# \n"})
    found = held_out.load(library, ["3.9.0/a.py", "3.9.0/b.py"])
    assert [file.name for file in found] == ["a.py", "b.py"]
    with pytest.raises(ConfigError, match=r"1 of the 2 held-out files; .* Python 3\.8\.0"):
        held_out.load(library, ["3.8.0/a.py", "3.9.0/b.py"])


def test_sites_are_functions_with_what_precedes_them() -> None:
    text = "import os\n\n\nclass A:\n    def f(self):\n        x = 1\n        return x\n"
    file = corpus.SourceFile("3.9.0", "a.py", text)
    assert held_out.sites([file], 5, methods=False) == []
    (site,) = held_out.sites([file], 5, methods=True)
    assert site.header == "    def f(self):"
    assert text.startswith(site.before + site.header)
