"""Where a sampling value comes from: the request, else flags, else the model's file, else ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import replace
from support.recommending import recommending
from support.serving import SETTINGS, Server, running

from nextn.cli.app import run
from nextn.cli.console import Console
from nextn.cli.sampling_options import not_given
from nextn.cli.served_model import ServedModel
from nextn.cli.shared_options import PlaceOptions
from nextn.core import nano
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import SpecOptions

Run = Callable[..., subprocess.CompletedProcess[str]]
Capture = pytest.CaptureFixture[str]
OURS = SamplingParams()
FILE = {"temperature": 0.5, "top_k": 7, "mirostat": 2, "samplers": ["top_k", "temperature"]}
TEMPLATE = "{{ messages[0].content }}"


@pytest.mark.parametrize("chat", [(), ("--chat",)])
@pytest.mark.parametrize(
    ("flags", "changed"),
    [
        ("", {}),
        ("--temp 0.8", {"temperature": 0.8}),  # although that is the default
        ("--temperature 0.25 --top-k 40", {"temperature": 0.25, "top_k": 40}),
        ("--mirostat 0", {"mirostat": 0}),
        ("--samplers top_p", {"samplers": ["top_p"], "mirostat": 0}),
        ("--sampling-seq p", {"samplers": ["top_p"], "mirostat": 0}),
        ("--min-p 0.3", {"min_p": 0.3}),
    ],
)
def test_flags_then_the_file_then_ours(
    spec: Run, flags: str, changed: dict[str, Any], chat: tuple[str, ...]
) -> None:
    script = {"echo": True, "recommended_sampling": FILE, "template": TEMPLATE}
    done = spec("generate", "-m", "m.gguf", "-s", "0", *flags.split(), *chat, "hi", script=script)
    assert done.returncode == 0, done.stderr
    expected = json.loads(json.dumps(to_builtins(OURS))) | FILE | changed
    assert json.loads(done.stdout)["params"]["sampling"] == expected


def test_speculative_simple_writes_as_generate_does(
    tiny: Callable[..., Any], tmp_path: Path, capsys: Capture
) -> None:
    model = str(recommending(tiny("qwen3").path, tmp_path / "m.gguf", temp=1.5, top_k=3))

    def text(command: str, *flags: str) -> str:
        assert run([command, "-m", model, "-n", "12", "-s", "3", "-p", "hello there", *flags]) == 0
        return capsys.readouterr().out

    assert text("speculative-simple") == text("generate")
    assert text("speculative-simple", "--temp", "0") == text("generate", "--temp", "0")
    assert text("speculative-simple") != text("speculative-simple", "--temp", "0")


def test_a_wrong_value_is_one_line(
    tiny: Callable[..., Any], tmp_path: Path, capsys: Capture
) -> None:
    model = str(recommending(tiny("qwen3").path, tmp_path / "m.gguf", temp="warm\n", top_k=3))
    assert run(["generate", "-m", model, "-n", "1", "-s", "1", "hi"]) == 0
    warning = "general.sampling.temp is ignored: it must be a number, got 'warm\\n'"
    assert capsys.readouterr().err.splitlines().count(warning) == 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`spec serve --temp 0.3 --top-p 0.5` with a file that recommends other values."""
    path = tmp_path_factory.mktemp("serve") / "m.gguf"
    recommending(nano.path(), path, temp=0.5, top_k=7, min_p=0.125, mirostat=2)
    flags = frozenset({"temperature", "top_p"})
    recipe = ServedModel(path, PlaceOptions(), SpecOptions(), None, 2, None, None, None, flags)
    settings = replace(SETTINGS, sampling=SamplingParams(temperature=0.3, top_p=0.5))
    with running(Server(lambda: recipe.load(Console(quiet=True)), settings)) as started:
        yield started


SERVED = {"temperature": 0.3, "top_p": 0.5, "top_k": 7, "min_p": 0.125, "mirostat": 2}


def test_props_show_what_a_request_gets(server: Server) -> None:
    shown = server.get("/props")["default_generation_settings"]["params"]
    assert {name: shown[name] for name in SERVED} == SERVED
    assert shown["typical_p"] == OURS.typical_p


@pytest.mark.parametrize(
    ("fields", "changed"),
    [
        ({}, {}),
        ({"temperature": 0.75, "top_k": 40}, {"temperature": 0.75, "top_k": 40}),
        ({"samplers": ["top_k"]}, {"samplers": ["top_k"], "mirostat": 0}),
        ({"samplers": ["top_k"], "mirostat": 2}, {"samplers": ["top_k"]}),
    ],
)
def test_requests_then_flags_then_the_file(
    server: Server, fields: dict[str, Any], changed: dict[str, Any]
) -> None:
    done = server.post("/completion", prompt="def f(", n_predict=1, **fields)
    used = done["generation_settings"]
    expected = SERVED | changed
    assert {name: used[name] for name in expected} == expected


def test_chosen_samplers_leave_out_the_mirostat_of_the_file() -> None:
    for flag in ("samplers", "sampling_seq"):
        assert not_given(FILE, frozenset({flag})) == {"temperature": 0.5, "top_k": 7}
