"""`spec serve --models-dir` and `--models-preset`: which models there are, each with its flags."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from support.adapter_files import write_adapter
from support.hub import hub_alone
from support.routed import DRAFT
from support.served import served
from support.serving import wait_until

from nextn.cli.app import COMMANDS
from nextn.cli.console import Console
from nextn.cli.lazy_group import load
from nextn.cli.router_options import RouterOptions
from nextn.cli.several_models import ModelList
from nextn.core import nano
from nextn.core.errors import ConfigError
from nextn.core.server.router.routed_model import ModelPlan
from nextn.core.server.settings import ServerSettings

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    (models / "other").mkdir(parents=True)
    (models / "two").mkdir()
    shutil.copy(nano.path(), models / "nano.gguf")
    shutil.copy(DRAFT, models / "other" / "file.gguf")
    for name in ("x", "y"):
        (models / "two" / f"{name}-00001-of-00002.gguf").write_bytes(b"GGUF")
        (models / "two" / f"{name}-00002-of-00002.gguf").write_bytes(b"GGUF")
    for name in ("mmproj-nano.gguf", "imatrix.gguf", "notes.txt"):
        (models / name).write_text("no model")
    (models / "broken.gguf").write_text("no GGUF")
    return models


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The hub's, with nothing in it."""
    monkeypatch.delenv("LLAMA_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def plans(
    preset: str, tmp_path: Path, folder: Path | None = None, output: Console | None = None,
    **given: Any,
) -> dict[str, ModelPlan]:  # fmt: skip
    path = tmp_path / "p.ini"
    path.write_text(preset)
    router = RouterOptions(
        models_dir=folder, models_preset=path, models_cache=given.get("models_cache")
    )
    command = load("serve", COMMANDS["serve"])
    found = ModelList(router, given, command, output or Console(quiet=True)).read()
    return {plan.name: plan for plan in found}


def settings(plan: ModelPlan) -> ServerSettings:
    return plan.open()[0]


def test_models_of_a_folder(folder: Path, tmp_path: Path) -> None:
    found = plans("", tmp_path, folder)
    assert set(found) == {"nano", "broken", "other", "two/x", "two/y"}
    assert {plan.source for plan in found.values()} == {"models_dir"}
    assert found["two/x"].n_bytes == 8
    assert found["nano"].n_bytes == nano.path().stat().st_size
    assert settings(found["nano"]).alias == ("nano",)
    assert settings(found["nano"]).writes_text is False


def test_the_section_overrules_that_of_all_and_the_command_line_both(tmp_path: Path) -> None:
    preset = f"""
version = 1
; a comment
[*]
n-predict = 10
temp = 0.5
top_k = 7
LLAMA_ARG_TAGS = small
no-slots = true
[a]
model = {nano.path()}
n = 20
slots = true
alias = one,uno
temp = 0.25
pinned = true
stop-timeout = 5
[b]
model = {nano.path()}
cache-prompt = false
n-gpu-layers = 99
mmap = false
load-on-startup = 1
"""
    found = plans(preset, tmp_path, predict=30, top_k=9)
    a, b = settings(found["a"]), settings(found["b"])
    assert (a.max_tokens, a.sampling.temperature, a.sampling.top_k) == (30, 0.25, 9)
    assert (b.max_tokens, b.sampling.temperature, b.sampling.top_k) == (30, 0.5, 9)
    assert (a.alias, a.tags, a.with_slots) == (("a", "one", "uno"), ("small",), True)
    assert (b.alias, b.with_slots, b.caches_prompts) == (("b",), False, False)
    assert (found["a"].is_pinned, found["a"].loads_at_start, found["a"].stop_s) == (True, True, 5)
    assert (found["b"].is_pinned, found["b"].loads_at_start) == (False, True)
    assert found["a"].aliases == ("one", "uno")
    assert found["b"].preset.startswith("[b]\nmodel = ")
    without = plans(preset, tmp_path)
    assert settings(without["a"]).max_tokens == 20
    assert settings(without["b"]).max_tokens == 10


def test_a_section_names_adapters(tmp_path: Path) -> None:
    adapters = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    for path in adapters:
        write_adapter(path, nano.path())
    preset = f"""
[a]
model = {nano.path()}
lora = {adapters[0]}
lora-scaled = {adapters[1]}:0.5
"""
    load_model = plans(preset, tmp_path)["a"].open()[1]
    loaded = load_model(lambda *_: None)
    try:
        assert loaded.runtime.model.adapters is not None
        assert loaded.runtime.model.adapters.scales == (1.0, 0.5)
    finally:
        loaded.runtime.close()


def test_flags_of_the_whole_server_have_no_effect_in_a_section(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = f"[a]\nmodel = {nano.path()}\nhost = 0.0.0.0\nport = 9\n"
    plans(preset, tmp_path, output=Console())
    err = capsys.readouterr().err
    assert err.endswith("p.ini: [a]: no effect here, of the whole server: --host, --port\n")


MODEL = "[a]\nmodel = nano\n"


def test_the_progress_of_a_load_is_reported(tmp_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    _, load = plans(MODEL, tmp_path)["a"].open()
    load(lambda stage, share: seen.append((stage, share))).runtime.close()
    assert ("loading weights", 1.0) in seen


@pytest.mark.parametrize(
    ("preset", "message"),
    [
        ("[a]\n", "[a]: names no model: give model = FILE or hf-repo = OWNER/NAME"),
        ("x = 1\n[a]\n", "line 1: x stands before the first [NAME]"),
        ("version = 2\n", "line 1: version stands before the first [NAME]"),
        ("[a]\n[a]\n", "line 2: [a] comes twice"),
        ("[]\n", "line 1: a section needs a name"),
        ("[a]\nmodel\n", "line 2: expected [NAME] or KEY = VALUE, got 'model'"),
        (
            f"{MODEL}ctx-sice = 5\n",
            "line 3: no flag is called 'ctx-sice' (did you mean --ctx-size?)",
        ),
        (f"{MODEL}help = true\n", "line 3: no flag is called 'help'"),
        (f"{MODEL}slots = maybe\n", "line 3: slots must be true or false, got 'maybe'"),
        (f"{MODEL}ctx-size = many\n", "[a]: invalid value for --ctx-size: "),
        (f"{MODEL}pinned = often\n", "line 3: pinned must be true or false, got 'often'"),
        (f"{MODEL}stop-timeout = x\n", "line 3: stop-timeout must be a number of seconds"),
        (f"{MODEL}control-vector = x.gguf\n", "[a]: --control-vector is not supported"),
        (f"{MODEL}spec-type = magic\n", "[a]: "),
        (f"{MODEL}alias = b\n[b]\nmodel = nano\n", "'b' is the name of two models, 'a' and 'b'"),
    ],
)
def test_a_preset_that_is_wrong(preset: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plans(preset, tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("--models-dir missing", "--models-dir: there is no folder missing"),
        ("--models-preset missing.ini", "--models-preset: there is no file missing.ini"),
        ("--models-dir . -m nano", "--model is of one model"),
        ("--models-dir . --alias x", "--alias is of one model"),
        ("--models-dir . --replicas 2", "--replicas are of one model"),
        ("--models-dir . --models-max -1", "invalid value for --models-max"),
        ("--models-preset pins.ini --models-max 1", "--models-max 1 is less than the 2 pinned"),
        ("--models-preset ./", "--models-preset: there is no file"),
    ],
)
def test_a_command_line_that_is_wrong(
    args: str, message: str, real_spec_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pinned = "[{}]\nmodel = nano\npinned = true\n"
    Path("pins.ini").write_text(pinned.format("a") + pinned.format("b"))
    done = real_spec_here("serve", "--port", "0", *args.split())
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def ask(port: int, path: str, **body: Any) -> tuple[int, Any]:
    data = json.dumps(body).encode() if body else None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=120) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_two_models_of_a_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preset = tmp_path / "p.ini"
    preset.write_text("[nano]\nspec-type = ngram-mod\n[other]\nspec-type = none\nnp = 1\n")
    monkeypatch.setenv("LLAMA_ARG_MODELS_DIR", str(folder))
    with served("--models-preset", str(preset), "-c", "512") as server:
        for name, types, n_slots in (("nano", ["ngram-mod"], 4), ("other", [], 1)):
            status, answer = ask(server.port, "/completion", model=name, prompt="a", n_predict=3)
            assert (status, answer["model"]) == (200, name)
            props = ask(server.port, f"/props?model={name}")[1]
            assert (props["speculative_types"], props["total_slots"]) == (types, n_slots)
            assert props["default_generation_settings"]["n_ctx"] == 512
        status, answer = ask(server.port, "/completion", model="broken", prompt="a")
        assert status == 500
        assert "broken.gguf: is not a GGUF file" in answer["error"]["message"]
        shutil.copy(DRAFT, folder / "new.gguf")
        listed = ask(server.port, "/models?reload=1")[1]["data"]
        assert "new" in {each["id"] for each in listed}
        preset.write_text("[nano]\nspec-type = magic\n")
        status, answer = ask(server.port, "/models?reload=1")
        assert status == 400
        assert "[nano]: " in answer["error"]["message"]
        assert server.end() == 0


def put(cache: Path, repo: str, *names: str) -> Path:
    """Into the hub's cache."""
    snapshot = cache / "--".join(("models", *repo.split("/"))) / "snapshots" / ("1" * 40)
    snapshot.mkdir(parents=True)
    for name in names:
        shutil.copy(nano.path(), snapshot / name)
    return snapshot


def test_models_of_the_hubs_cache(folder: Path, tmp_path: Path, cache: Path) -> None:
    snapshot = put(cache, "a/b", "m-Q8_0.gguf", "m-Q4_0.gguf", "mmproj-m-F16.gguf")
    found = plans("[a/b:Q4_0]\nn = 7\n", tmp_path, folder)
    assert {name for name, plan in found.items() if plan.source == "cache"} == {"a/b:Q8_0"}
    assert found["a/b:Q4_0"].source == "preset"
    assert settings(found["a/b:Q4_0"]).max_tokens == 7
    assert found["a/b:Q8_0"].n_bytes == nano.path().stat().st_size
    assert found["a/b:Q8_0"].flags == ("--model", str(snapshot / "m-Q8_0.gguf"))
    assert settings(found["a/b:Q8_0"]).alias == ("a/b:Q8_0",)
    without = plans("", tmp_path, folder, models_cache=False)
    assert not [name for name in without if name.startswith("a/b")]


def test_a_preset_hides_what_it_uses_of_the_cache(tmp_path: Path, cache: Path) -> None:
    put(cache, "a/b", "m-Q8_0.gguf", "m-Q4_K_M.gguf")
    put(cache, "c/d", "m-F16.gguf")
    preset = "[x]\nhf-repo = a/b\nspec-draft-hf = c/d\ndedup-cache-models = {}\n"
    for switch, hidden in (("1", {"a/b:Q4_K_M", "c/d:F16"}), ("0", set())):
        found = plans(preset.format(switch), tmp_path)
        assert set(found) == {"x", "a/b:Q8_0", "a/b:Q4_K_M", "c/d:F16"}
        assert {name for name, plan in found.items() if plan.is_hidden} == hidden


@pytest.mark.parametrize(
    ("flags", "given", "said"),
    [
        ({"models_cache": True}, {}, ""),
        ({"models_cache": True, "models_download": False}, {}, "--no-models-download"),
        ({"models_dir": Path(), "models_cache": False}, {}, "--no-models-cache"),
        ({"models_dir": Path()}, {"hosts": ("0.0.0.0",), "api_keys": ("k",)}, ""),
        ({"models_dir": Path()}, {"hosts": ("0.0.0.0",), "is_open": True}, "--models-download"),
        (
            {"models_dir": Path(), "models_download": True},
            {"hosts": ("0.0.0.0",), "is_open": True},
            "",
        ),
    ],
)
def test_who_may_download(flags: dict[str, Any], given: dict[str, Any], said: str) -> None:
    refusal = RouterOptions(**flags).refusal(ServerSettings(**given))
    assert said in refusal
    assert bool(refusal) == bool(said)


def test_a_server_with_the_hubs_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tmp_path / "files"
    files.mkdir()
    shutil.copy(nano.path(), files / "nano-Q8_0.gguf")
    name = "owner/name:Q8_0"
    with hub_alone(files, tmp_path, monkeypatch) as hub:
        with served("--models-cache", "-c", "512") as server:
            assert ask(server.port, "/models")[1]["data"] == []
            assert ask(server.port, "/models", model=name) == (200, {"success": True})
            wait_until(lambda: name in listed(server.port))
            assert ask(server.port, "/completion", model=name, prompt="a", n_predict=3)[0] == 200
        hub.faults["status"] = 500
        with served("--models-cache", "--offline", "-c", "512") as server:
            assert listed(server.port) == {name: "unloaded"}
            assert ask(server.port, "/completion", model=name, prompt="a", n_predict=3)[0] == 200
            status, body = ask(server.port, "/models", model="owner/other")
            assert (status, body["error"]["message"]) == (503, "the network is not used")


def listed(port: int) -> dict[str, str]:
    """Models that are not being downloaded, by name."""
    found = {each["id"]: each["status"]["value"] for each in ask(port, "/models")[1]["data"]}
    return {name: status for name, status in found.items() if status != "downloading"}
