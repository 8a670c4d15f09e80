"""`-hf OWNER/NAME`: a model of the hub from the command line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.hub import Hub, serve_hub

from nextn.core import nano

Generate = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("repo")
    shutil.copy(nano.path(), folder / "nano-Q8_0.gguf")
    with serve_hub() as made:
        made.add_folder(folder)
        yield made


@pytest.fixture
def generate(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generate:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    start = "from nextn.cli.start import main; main()"
    command = [sys.executable, "-c", start, "generate", "--temp", "0", "-n", "4", "-p", "def f("]
    return lambda *flags: subprocess.run(
        [*command, *flags], capture_output=True, text=True, check=False, timeout=300
    )


def test_a_model_of_the_hub(generate: Generate) -> None:
    done = generate("-hf", "owner/name:Q8_0")
    assert done.returncode == 0, done.stderr
    assert "hub        owner/name: nano-Q8_0.gguf\n" in done.stderr
    assert done.stdout == generate("-m", "nano").stdout
    again = generate("-hf", "owner/name", "--offline", "-q")
    assert (again.stdout, again.stderr) == (done.stdout, "")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("-hf", "owner/none"), "the hub has no owner/none, or it is private"),
        (("-hf", "owner/name:Q2_K"), "owner/name has no file of Q2_K; it has 'Q8_0'"),
        (("-hf", "owner/name", "--offline"), "the network is not used, and owner/name was not"),
        (("-m", "owner/name"), "no such file: owner/name (-hf owner/name is that of the hub)"),
    ],
)
def test_failures_are_one_line(generate: Generate, flags: tuple[str, ...], said: str) -> None:
    done = generate(*flags)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
