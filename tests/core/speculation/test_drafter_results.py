"""What drafters brought is kept and told by later runs; what a file leaves open is tried."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.draft_dialects import rewrite
from support.eagle3_files import Kind, write_eagle3
from support.network_drafts import SPEC, Tiny, load
from support.serving import nano_server, running

from nextn.cli.app import run
from nextn.core import nano
from nextn.core.generation import GenerateParams
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Typed, ValueType
from nextn.core.load_runtime import load_runtime
from nextn.core.models.drafters.eagle3 import Eagle3
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation import drafter_results
from nextn.core.speculation.companions import find_companions
from nextn.core.speculation.drafter_results import FEW, DrafterResult, ResultFile
from nextn.core.speculation.options import SpecOptions

DATA = Path(__file__).parents[2] / "data"
DRAFTER = DATA / "nano-eagle3.gguf"
NANO = nano.path()
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=60, ignore_eos=True)
EAGLE3 = SpecOptions(types=("eagle3",), fixed=True, draft_n_max=3)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(drafter_results, "cache_root", lambda: tmp_path / "cache")
    monkeypatch.setenv("SPEC_DRAFTER_RESULTS", "1")
    return tmp_path / "cache" / "drafters"


def kept(target: Path, drafter: Path) -> DrafterResult:
    with open_gguf(target) as model, open_gguf(drafter) as file:
        return ResultFile(model, file).read()


def write(runtime: Runtime) -> None:
    assert list(runtime.generate("def mean(values):\n    ", GREEDY))


def test_it_is_added_up_over_runs() -> None:
    drafts = []
    for _ in range(2):
        with load_runtime(NANO, "cpu", n_ctx=256, spec=EAGLE3, draft=DRAFTER) as runtime:
            write(runtime)
            drafts.append((runtime.stats.drafts, runtime.stats.draft_n_accepted))
    found = kept(NANO, DRAFTER)
    assert (found.drafts, found.accepted) == tuple(map(sum, zip(*drafts, strict=True)))
    assert 1.5 < found.length < 4
    assert not found.is_poor
    assert kept(DATA / "nano-draft.gguf", DRAFTER) == DrafterResult(), "of another model"


def test_synthetic_acceptance_is_not_kept(folder: Path) -> None:
    spec = replace(EAGLE3, synth_len=2.0)
    with load_runtime(NANO, "cpu", n_ctx=256, spec=spec, draft=DRAFTER) as runtime:
        write(runtime)
    assert not folder.exists()


def test_files_that_are_damaged_or_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    with open_gguf(NANO) as model:
        file = ResultFile(model, model)
        file.add(DrafterResult(40, 120, 60))
        (path,) = folder.iterdir()
        for text in (
            "",
            "{",
            "[]",
            '{"drafts": 2, "drafted": 1, "accepted": 3}',
            '{"drafts": "x"}',
        ):
            path.write_text(text)
            assert file.read() == DrafterResult()
        file.add(DrafterResult(40, 120, 60))
        assert file.read() == DrafterResult(40, 120, 60)
        monkeypatch.setenv("SPEC_DRAFTER_RESULTS", "0")
        assert file.read() == DrafterResult()
        monkeypatch.setenv("SPEC_DRAFTER_RESULTS", "1")
        nowhere = ResultFile(model, model, path / "below a file")
        nowhere.add(DrafterResult(40, 120, 60))
        assert nowhere.read() == DrafterResult()


def test_old_counts_fade(folder: Path) -> None:
    with open_gguf(NANO) as model:
        file = ResultFile(model, model)
        file.add(DrafterResult(100_000, 300_000, 0))
        file.settle(feeds_normed=True)
        file.add(DrafterResult(100, 300, 300))
        assert file.read() == DrafterResult(50_100, 150_300, 300, feeds_normed=True)


def test_one_that_has_drafted_badly_comes_last(tiny: Tiny, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(tiny("qwen3").path, model)
    small = write_eagle3(tmp_path / "a.gguf", model).path
    write_eagle3(tmp_path / "b.gguf", model, Kind(own_embedding=True))
    with open_gguf(model) as target:
        assert [each.file.path.name for each in find_companions(target, SPEC)] == ["a.gguf"]
        with open_gguf(small) as file:
            ResultFile(target, file).add(DrafterResult(FEW, 3 * FEW, 1))
        assert [each.file.path.name for each in find_companions(target, SPEC)] == ["b.gguf"]


def inspect(*words: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert run(["convert", "inspect", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_verdict_on_a_pair(tiny: Tiny, capsys: pytest.CaptureFixture[str]) -> None:
    """That a random drafter fits by its sizes says nothing: what it drafts does."""
    words = (str(DRAFTER), "--target", str(NANO))
    before = inspect(*words, capsys=capsys)
    (verdict,) = before["drafters"]
    assert (before["kind"], verdict["works"]) == ("pair", True)
    assert "goes with this model; it takes 1.1 MB, and 0.52 MB for each 1024" in verdict["text"]
    assert "what it brings is not measured yet" in verdict["text"]
    measured = inspect(*words, "--run", capsys=capsys)["drafters"][0]["text"]
    assert "; measured 2." in measured
    assert inspect(*words, capsys=capsys)["drafters"][0]["text"] == measured, "it is kept"
    other = ("--draft", str(DRAFTER))
    assert inspect(str(NANO), *other, capsys=capsys)["drafters"][0]["text"] == measured


def test_a_pair_that_fits_and_drafts_badly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_eagle3(tmp_path / "random.gguf", NANO).path
    found = inspect(str(path), "--target", str(NANO), "--run", capsys=capsys)
    (verdict,) = found["drafters"]
    assert verdict["works"]
    assert "it drafts badly: measured 1.0" in verdict["text"]
    assert any(
        "drafted tokens were accepted: it was made for" in f["text"] for f in found["findings"]
    )


def test_what_does_not_fit_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_eagle3(tmp_path / "other.gguf", DATA / "nano-draft.gguf").path
    assert run(["convert", "inspect", str(path), "--target", str(NANO), "--run", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert not found["drafters"][0]["works"]
    assert "it reads rows of 128, the model has rows of 256" in str(found["findings"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            [str(DRAFTER), "--target", str(DRAFTER)],
            "--target: {} is an EAGLE3 drafter for another model",
        ),
        ([str(DRAFTER), "--target", str(NANO), "--draft", "x"], "or --target, not both"),
        ([str(DRAFTER), "--target", str(NANO), "--metadata"], "not with --tensors and --metadata"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", "inspect", *words]) == 1
    shown = capsys.readouterr().err
    assert text.format(DRAFTER) in shown
    assert shown.count("\n") == 1


# Which row a drafted one goes on from


def unsure(path: Path, source: Path) -> Path:
    doubt = {"eagle3.norm_output_unsure": Typed(ValueType.BOOL, True)}
    return rewrite(source, path, lambda keys: keys | doubt, str)


def fed(runtime: Runtime) -> bool:
    (network,) = runtime.model.drafters["eagle3"]
    assert isinstance(network, Eagle3)
    return network.feeds_normed


def test_what_a_file_leaves_open_is_tried_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = unsure(tmp_path / "unsure.gguf", DRAFTER)
    caplog.set_level(logging.WARNING)
    with load_runtime(NANO, "cpu", n_ctx=256, spec=EAGLE3, draft=path) as runtime:
        chosen = fed(runtime)
        want = [event.token for event in runtime.generate("def f():", GREEDY)]
    (record,) = caplog.records
    found = re.search(r"measured ([0-9.]+) and ([0-9.]+) .* so the (\w+) is", record.getMessage())
    assert found is not None
    assert chosen == (float(found[2]) > float(found[1])) == (found[3] == "latter")
    caplog.clear()
    with load_runtime(NANO, "cpu", n_ctx=256, spec=EAGLE3, draft=path) as runtime:
        assert fed(runtime) == chosen
        assert [event.token for event in runtime.generate("def f():", GREEDY)] == want
    assert not caplog.records


@pytest.mark.parametrize("is_normed", [False, True])
def test_the_better_reading_is_taken(is_normed: bool, monkeypatch: pytest.MonkeyPatch,
                                     tiny: Tiny, tmp_path: Path) -> None:  # fmt: skip
    """By what drafts bring, which a random drafter has nothing of."""

    def try_drafter(runtime: Runtime, _name: str, *, keeps: bool) -> DrafterResult:
        assert not keeps
        return DrafterResult(50, 150, 90 if fed(runtime) == is_normed else 40)

    monkeypatch.setattr("nextn.core.try_drafter.try_drafter", try_drafter)
    model = tiny("qwen3").path
    path = unsure(tmp_path / "u.gguf", write_eagle3(tmp_path / "e.gguf", model).path)
    with load(model, path) as runtime:
        assert fed(runtime) == is_normed


# Idle drafters of a server


def test_a_server_says_why_a_drafter_is_idle(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In its log once, and in /props."""
    path = write_eagle3(tmp_path / "e.gguf", NANO).path
    costs = tmp_path / "costs.json"
    costs.write_text(
        json.dumps(
            {
                "format": "nextn-costs",
                "step": {"rows": {"1": {"ms": 1.0}, "2": {"ms": 1.2}, "4": {"ms": 1.6}}},
                "draft": {"eagle3": {"1": {"1": 0.5, "4": 2.0}}},
            }
        )
    )
    spec = SpecOptions(types=("eagle3",), costs=str(costs))
    with running(nano_server(n=1, spec=spec, how={"draft": path})) as server:
        (drafter,) = server.get("/props")["drafters"]
        assert drafter["name"] == "eagle3"
        assert (drafter["file"], drafter["idle"]) == (str(path), "")
        for _ in range(2):
            body = {"prompt": "def f(x):", "n_predict": 60, "temperature": 0, "ignore_eos": True}
            server.post("/completion", **body)
        (drafter,) = server.get("/props")["drafters"]
    assert "x of plain decoding, with 1." in drafter["idle"]
    assert drafter["draft_n"] > drafter["draft_n_accepted"]
    said = [each for each in caplog.records if "eagle3 is idle: " in each.getMessage()]
    assert len(said) == 1
