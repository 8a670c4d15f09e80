"""Models that do not fit into memory are refused before they are read, with the numbers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.random_file import Sizes
from support.sparse_file import write_sparse_qwen35
from support.tiny_models import TinyModel

import nextn.core
from nextn.core import fitting
from nextn.core.backend import create_backend
from nextn.core.errors import ConfigError, ModelError
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.core.models.demand import Demand

Tiny = Callable[..., TinyModel]
GIB = 1 << 30
SMALL = Sizes(n_layers=4, n_embd=256, n_ff=512, n_vocab=1024, n_delta_heads=2)

GENERATE = """
import resource, sys
from nextn.cli.app import run
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
code = run(["generate", "-m", sys.argv[1], "-c", "4096", "hi"])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
sys.exit(code)
"""


def available(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    monkeypatch.setattr(fitting, "available_memory", lambda: n_bytes)


def demand_of(path: Path, device: str) -> Demand:
    seen: list[Demand] = []
    build_model(open_gguf(path), create_backend(device), seen.append)
    return seen[0]


@pytest.mark.skipif(sys.platform == "win32", reason="files there are not sparse by default")
def test_a_hundred_gigabytes(tmp_path: Path) -> None:
    path = write_sparse_qwen35(tmp_path / "huge.gguf", "Q8_0")
    assert path.stat().st_size > 90 * GIB
    done = subprocess.run(
        [sys.executable, "-c", GENERATE, str(path)],
        capture_output=True, text=True, timeout=60, env=os.environ | {"SPEC_DEBUG": ""},
    )  # fmt: skip
    assert done.returncode == 1
    found = re.fullmatch(
        r"spec: error: (\S+): not enough memory for this model: its weights take (\d+\.\d\d) GiB "
        r"\((\d+\.\d\d) GiB in the file\), KV cache and state at least (\d\.\d\d) GiB, but "
        r"(\d+\.\d\d) GiB are free; take a file with fewer bits per weight, or close other "
        r"programs\n",
        done.stderr,
    )
    assert found is not None, done.stderr
    assert found[1] == str(path)
    assert float(found[2]) == pytest.approx(path.stat().st_size / GIB, rel=0.01)
    assert int(done.stdout) < 300  # MiB: none of it was read


@pytest.mark.parametrize("device", ["cpu", "torch"])
@pytest.mark.parametrize(("family", "quantise"), [("qwen3moe", "Q8_0"), ("qwen35", "F32")])
def test_what_is_foretold_is_what_is_taken(
    family: str, quantise: str, device: str, tiny: Tiny
) -> None:
    path = tiny(family, quantise=quantise).path
    with nextn.core.load(path, device, n_ctx=64) as runtime:
        assert demand_of(path, device).weight_bytes == runtime.backend.weight_bytes()


def test_expanded_types_are_counted_as_they_will_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_sparse_qwen35(tmp_path / "iq2.gguf", "IQ2_XXS", SMALL)
    stored = path.stat().st_size
    available(monkeypatch, 3 * stored)
    with pytest.raises(ModelError, match=r"expands its types.*Q4_K") as caught:
        nextn.core.load(path, "cpu", n_ctx=64)
    assert str(caught.value).startswith(f"{path}: not enough memory")


def test_the_line_between_model_and_context(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """One byte decides whether the model or the context is too large; both say what fits."""
    path = tiny("qwen35").path
    with nextn.core.load(path, "cpu", n_ctx=64) as runtime:
        budget, weights = runtime.budget, runtime.backend.weight_bytes()
    least = weights + budget.slot_bytes + 2 * budget.page_bytes
    available(monkeypatch, least - 1)
    with pytest.raises(ModelError, match="not enough memory for this model"):
        nextn.core.load(path, "cpu", n_ctx=512)
    available(monkeypatch, least)
    with pytest.raises(ConfigError, match=r"1 x 512 tokens.*smaller -c \(up to 64 would fit\)"):
        nextn.core.load(path, "cpu", n_ctx=512)


def test_nothing_is_read_of_what_is_refused(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    from nextn.core.backend.cpu.backend import CpuBackend

    available(monkeypatch, 10_000)
    monkeypatch.setattr(CpuBackend, "matrix", None)
    with pytest.raises(ModelError, match="not enough memory for this model"):
        nextn.core.load(tiny("qwen3").path, "cpu", n_ctx=64)


def test_where_the_system_does_not_say(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "available_memory", lambda: None)
    with nextn.core.load(tiny("qwen3").path, "cpu", n_ctx=64) as runtime:
        assert runtime.budget.available is None
