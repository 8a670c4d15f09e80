"""`make bench-gpu DRY=1`: all that is measured on a GPU, once and small, on the CPU shim."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checked_sources import if_backend_changed
from shim.machine import host_problem
from support.host_device import HostDevice
from support.random_shapes import QWEN36_35B_A3B, tiny

from nextn.core.gguf.quants import dequantize, find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.models.model_weights import Inventory, Weights
from nextn.cuda_kernels.device import unavailable_reason
from nextn.cuda_kernels.repack import unpack

pytestmark = if_backend_changed

TESTS = Path(__file__).parents[2]
Part = Callable[[str], ModuleType]


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[Part]:
    """A module of the benchmark by its name."""
    if reason := host_problem():
        pytest.skip(reason)
    monkeypatch.syspath_prepend(str(TESTS))
    yield lambda name: importlib.import_module(f"bench.gpu.{name}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
        del sys.modules[name]


@pytest.mark.slow
def test_some_sections_run(part: Part, tmp_path: Path) -> None:
    main, out = part("__main__"), tmp_path / "record.json"
    assert main.measure(part("place").Place.dry(), ["35B-A3B:exact", "35B-A3B:ngrams"], out) == []
    sections = json.loads(out.read_text())["sections"]
    assert set(sections) == {"35B-A3B load", "35B-A3B exact", "35B-A3B ngrams"}
    check_exact_and_ngrams(sections)


def check_exact_and_ngrams(sections: dict[str, Any]) -> None:
    verdicts = {f["figure"]: f["verdict"] for f in sections["35B-A3B exact"]["figures"]}
    assert set(verdicts.values()) == {"met"}, verdicts
    lengths = {f["figure"]: f for f in sections["35B-A3B ngrams"]["figures"]}
    assert lengths["ngram-simple of 6"]["tokens_of_a_round"] > 1, "nothing was drafted"


@pytest.mark.exhaustive
def test_every_section_runs(part: Part, tmp_path: Path) -> None:
    main, out = part("__main__"), tmp_path / "record.json"
    place = part("place").Place.dry()
    assert main.measure(place, ["35B-A3B", "27B:kernels"], out) == []
    sections = json.loads(out.read_text())["sections"]
    assert set(sections) == {
        *("27B load", "27B kernels", "35B-A3B load"),
        *(f"35B-A3B {name}" for name in main.SECTIONS),
    }
    check_exact_and_ngrams(sections)
    for name in ("27B kernels", "35B-A3B kernels"):
        figures = {f["figure"]: f["measured"] for f in sections[name]["figures"]}
        assert figures["1 row: launches / counted"] == figures["4 rows: launches / counted"] == 1


@pytest.mark.slow
def test_what_fails_is_a_line(
    part: Part, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main, out = part("__main__"), tmp_path / "record.json"

    def broken(loaded: object, seconds: float) -> Any:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 20 GiB")

    def fine(loaded: object, seconds: float) -> Any:
        return [main.Figure("a figure", 2.0, "x", at_least=1.0)]

    sections = {"broken": (broken, 1, 1), "fine": (fine, 1, 1)}
    monkeypatch.setattr(main, "SECTIONS", sections)
    place = part("place").Place.dry()
    assert main.measure(place, [], out) == ["27B broken", "35B-A3B broken"]
    shown = capsys.readouterr().out
    assert "27B broken: RuntimeError: CUDA out of memory. Tried to allocate 20 GiB\n" in shown
    assert "35B-A3B fine" in shown
    found = json.loads(out.read_text())["sections"]
    assert "out of memory" in found["27B broken"]["failed"]
    assert found["27B fine"]["figures"][0]["verdict"] == "met"
    place.ends = 0.0
    assert main.measure(place, ["fine"]) == ["27B load", "35B-A3B load"]
    assert "27B load: no time was left for it" in capsys.readouterr().out


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K"])
def test_random_weights_have_an_ordinary_size(kind: str, gated: bool, part: Part) -> None:
    from nextn.core.backend.layers import MatrixPart
    from nextn.core.gguf.tensors import Tensor

    form = find_format(kind)
    tensor = Tensor("blk.0.ffn_up.weight", (32, 512), form, np.zeros(0, np.uint8))
    uploads = part("random_weights").RandomUploads(HostDevice())
    packed = uploads.tiles(kind, [MatrixPart(tensor)], gated=gated)
    data = unpack(kind, packed, 32, 512)
    values = dequantize(data.reshape(-1), form, (32, 512))
    assert np.isfinite(values).all()
    assert 0.2 < values.std() * 512**0.5 < 5
    assert len(np.unique(values)) > 1000


def test_a_file_of_shapes_holds_next_to_nothing(part: Part, tmp_path: Path) -> None:
    path = part("random_weights").write_shapes(tmp_path / "shapes.gguf", tiny(QWEN36_35B_A3B))
    with open_gguf(path) as file:
        norms = Weights(file, Inventory()).floats("output_norm.weight", 256)
        assert np.abs(norms - 1).mean() > 0.05
        assert not file.tensors["blk.0.ffn_up_exps.weight"].data.any()
    if hasattr(os.stat_result, "st_blocks"):
        assert 512 * path.stat().st_blocks < path.stat().st_size


def test_without_a_gpu_it_says_so_in_one_line() -> None:
    if unavailable_reason() is None:
        pytest.skip("there is a GPU")
    done = _run()
    assert done.returncode == 1
    assert done.stderr.startswith("nothing can be measured here: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_an_unknown_section_is_told() -> None:
    done = _run("--only", "27B:speed")
    assert done.returncode == 2
    assert "no section '27B:speed'; choose from 27B, 35B-A3B, exact" in done.stderr


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = [TESTS, TESTS / "lib", TESTS / "cuda_host", os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-m", "bench.gpu", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
