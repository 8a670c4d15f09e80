"""Beside llama.cpp: errors of the same tensors, and whether it reads the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.ggml_quantize import ggml_quantize
from support.llama_cpp import LlamaCpp

from nextn.convert.files.output_file import OutputFile
from nextn.convert.quantize.block_writers import WRITERS
from nextn.convert.quantize.native_quantizer import NativeQuantizer
from nextn.convert.quantize.quantize_file import quantize_file
from nextn.convert.quantize.quantize_plan import QuantizeOptions, make_plan
from nextn.convert.quantize.recipes import RECIPES, find_recipe
from nextn.core import nano
from nextn.core.gguf.quants import dequantize, find_format
from nextn.core.gguf.reader import open_gguf

Floats = NDArray[np.float32]
MOST = 1.02  # of llama.cpp's error
pytestmark = pytest.mark.peer


def weights(name: str) -> Floats:
    rng = np.random.default_rng(3)
    if name == "gaussian":
        return (rng.standard_normal((128, 1024)) * 0.02).astype(np.float32)
    if name == "heavy":
        return (rng.standard_t(3, (128, 1024)) * 0.02).astype(np.float32)
    with open_gguf(nano.path()) as source:
        rows = [
            tensor.floats().reshape(-1, 256)[:64]
            for tensor in source.tensors.values()
            if len(tensor.shape) == 2 and tensor.n_elements >= 64 * 256
        ]
    return np.concatenate(rows)


@pytest.fixture(scope="module")
def native() -> NativeQuantizer:
    return NativeQuantizer(WRITERS)


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", ["gaussian", "heavy", "trained"])
@pytest.mark.parametrize("with_importance", [False, True])
def test_errors_are_no_larger(
    kind: str, name: str, with_importance: bool, native: NativeQuantizer
) -> None:
    rows, form = weights(name), find_format(kind)
    rng = np.random.default_rng(4)
    columns = rng.chisquare(1, (rows.shape[1],)).astype(np.float32) + np.float32(0.05)
    importance = columns if with_importance else None
    ours = np.zeros(form.n_bytes(rows.size), np.uint8)
    native.quantize(form, rows, importance, ours)
    theirs = ggml_quantize(kind, rows, importance)
    squares = [
        _weighed(rows, dequantize(data, form, rows.shape), importance) for data in (ours, theirs)
    ]
    assert squares[0] <= MOST**2 * squares[1]


def _weighed(rows: Floats, back: Floats, importance: Floats | None) -> float:
    squares = (back.astype(np.float64) - rows) ** 2
    return float((squares if importance is None else squares * importance).sum())


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(nano.path(), tmp_path_factory.mktemp("halves") / "f16.gguf", "F16")


def convert(source: Path, target: Path, recipe: str) -> Path:
    with open_gguf(source) as file:
        plan = make_plan(file, QuantizeOptions(find_recipe(recipe), allows_requantising=True))
        quantize_file(file, plan, OutputFile(target), n_threads=2)
    return target


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name != "Q2_K_S"])
def test_llama_cpp_reads_and_writes_with_it(
    recipe: str, halves: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = convert(halves, tmp_path / "model.gguf", recipe)
    with capfd.disabled(), LlamaCpp(path) as model:
        prompt = model.tokenize("def read_lines(path):\n    with open(path) as")
        written = model.greedy(prompt, 4)
    assert len(written.tokens) > 0
    assert np.isfinite(list(written.timings.values())).all()
