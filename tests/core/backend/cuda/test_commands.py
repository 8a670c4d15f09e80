"""`--device cuda` in all commands: by the shim, and on a device where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checked_sources import if_backend_changed
from support.serving import SETTINGS, Server, running
from support.tiny_models import TinyModel

from nextn.cli.app import run
from nextn.core.load_runtime import load_runtime
from nextn.core.server.loading import prepare

Tiny = Callable[..., TinyModel]
SHORT = ("-n", "12", "--device", "cuda")
pytestmark = if_backend_changed


@pytest.fixture
def model(tiny: Tiny, shim: None) -> Path:
    path: Path = tiny("qwen35", mtp=True, quantise="Q8_0").path
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    """By a command that works."""
    code = run(list(arguments))
    shown = capsys.readouterr()
    assert code == 0, shown.err
    return shown.out, shown.err


@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_generate_proves_its_text(
    temperature: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("generate", "-m", str(model), *SHORT, "--temp", temperature, "-s", "4", "-p", "hello")
    drafting = ("--spec-type", "mtp", "--spec-fixed", "--verify-lossless")
    told: dict[str, Any] = json.loads(said(capsys, *given, *drafting, "--json")[0])
    assert told["draft_n"] > 0
    assert told["lossless"] is True
    plain = json.loads(said(capsys, *given, "--spec-type", "none", "--json")[0])
    assert plain["tokens"] == told["tokens"]


def test_the_loop_on_one_page(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("speculative-simple", "-m", str(model), *SHORT, "--temp", "0", "-p", "hello")
    out, err = said(capsys, *given, "--spec-type", "mtp")
    plain, _ = said(capsys, "generate", *given[1:], "--spec-type", "none")
    assert out.strip() == plain.strip()
    assert "n_drafted" in err


def test_a_benchmark(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--vs", "none", "--vs", "mtp:n=2", "--set", "code", "--limit", "1", "-r", "1", "-q")
    out, _ = said(capsys, "bench-spec", "-m", str(model), *SHORT, *given, "--expect-identical")
    assert "equal" in out


def test_a_server_and_several_clients(model: Path) -> None:
    def make() -> Any:
        return prepare(load_runtime(model, "cuda", n_ctx=256), 2, None, None)

    asked = {"max_tokens": 10, "temperature": 0.7, "seed": 3, "prompt": "hello there"}
    with running(Server(make, SETTINGS)) as server:
        off = {"speculative": {"off": True}}
        plain = server.post("/v1/completions", **asked, **off)["choices"][0]["text"]
        both = server.post("/v1/completions", **{**asked, "prompt": ["hello there", "and you"]})
        assert both["choices"][0]["text"] == plain
        assert server.post("/v1/completions", **asked)["choices"][0]["text"] == plain
