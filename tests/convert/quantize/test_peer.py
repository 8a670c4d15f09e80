"""Beside llama.cpp: errors of the same tensors, and whether it reads the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.ggml_quantize import ggml_quantize
from support.llama_cpp import LlamaCpp
from support.quantize_families import write_importance

from nextn.convert.files.output_file import OutputFile
from nextn.convert.quantize.imatrix import Importance, read_importance
from nextn.convert.quantize.native_quantizer import QUANTISED, NativeQuantizer
from nextn.convert.quantize.quantize_file import quantize_file
from nextn.convert.quantize.quantize_plan import (
    NEED_IMPORTANCE,
    QuantizeOptions,
    check_plan,
    make_plan,
)
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
    return NativeQuantizer(QUANTISED)


@pytest.mark.parametrize("kind", QUANTISED)
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
    alike = np.ones(rows.shape[1], np.float32) if kind in NEED_IMPORTANCE else None
    theirs = ggml_quantize(kind, rows, alike if importance is None else importance)
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


def convert(source: Path, target: Path, recipe: str, importance: Importance | None = None) -> Path:
    with open_gguf(source) as file:
        options = QuantizeOptions(
            find_recipe(recipe), allows_requantising=True, importance=importance
        )
        plan = make_plan(file, options)
        check_plan(plan)
        quantize_file(file, plan, OutputFile(target), n_threads=2)
    return target


@pytest.mark.parametrize("recipe", RECIPES)
def test_llama_cpp_reads_and_writes_with_it(
    recipe: str, halves: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with open_gguf(halves) as file:
        shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    write_importance(tmp_path / "i.gguf", {n: s for n, s in shapes.items() if len(s) > 1})
    importance = read_importance(tmp_path / "i.gguf")
    path = convert(halves, tmp_path / "model.gguf", recipe, importance)
    with capfd.disabled(), LlamaCpp(path) as model:
        prompt = model.tokenize("def read_lines(path):\n    with open(path) as")
        written = model.greedy(prompt, 4)
    assert len(written.tokens) > 0
    assert np.isfinite(list(written.timings.values())).all()
