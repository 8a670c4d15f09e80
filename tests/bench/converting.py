"""`spec convert`: what quantising loses, how fast it is, and what a head costs in a large file."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from support.ggml_quantize import ggml_quantize
from support.random_shapes import Sizes
from support.sparse_file import write_sparse_qwen35

from nextn.convert.files.output_file import OutputFile
from nextn.convert.quantize.block_writers import WRITERS
from nextn.convert.quantize.native_quantizer import encode
from nextn.convert.quantize.quantize_file import quantize_file
from nextn.convert.quantize.quantize_plan import QuantizeOptions, make_plan
from nextn.convert.quantize.recipes import find_recipe
from nextn.core.gguf.quants import dequantize, find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Writable
from nextn.core.gguf.writer import TensorData, write_gguf

from .figures import Figure, spread
from .setup import Setup

MOST_ERROR = 1.02  # of llama.cpp's
RATES = {"Q8_0": 300.0, "Q4_K": 50.0, "Q6_K": None, "IQ4_XS": None}  # MB/s of F16
ROUNDS = 3
SPEC = "from nextn.cli.start import main; main()"
# Qwen3.5-27B as it is, but for the vocabulary: 15 GB in Q4_0.
LARGE = Sizes(
    n_layers=64, n_embd=5120, n_ff=17408, n_vocab=65536, n_heads=24, n_kv_heads=4,
    n_delta_heads=48,
)  # fmt: skip
MOST_MEMORY = 1000.0  # MB


def errors(_: Setup) -> list[Figure]:
    """RMS error of the same rows over that of ggml's own quantisers, the worse of two kinds."""
    rng = np.random.default_rng(0)
    rows = {
        "gaussian": rng.standard_normal((512, 1024)).astype(np.float32),
        "heavy-tailed": rng.standard_t(3, (512, 1024)).astype(np.float32),
    }
    figures = []
    for kind in WRITERS:
        form = find_format(kind)
        ratios = {}
        for name, values in rows.items():
            squares = [
                float(np.square(dequantize(data, form, values.shape) - values, dtype=float).sum())
                for data in (encode(values, form), ggml_quantize(kind, values))
            ]
            ratios[name] = (squares[0] / squares[1]) ** 0.5
        name = f"{kind}: RMS error / ggml's"
        figures.append(Figure(name, max(ratios.values()), "x", at_most=MOST_ERROR, detail=ratios))
    return figures


def speed(setup: Setup) -> list[Figure]:
    """A file of F16 to a file."""
    source = setup.folder / "halves.gguf"
    if not source.exists():
        rows = np.random.default_rng(0).standard_normal((4096, 4096)).astype(np.float16)
        shape, form = rows.shape, find_format("F16")
        names = [f"blk.{n}.ffn_up.weight" for n in range(8)]
        keys: dict[str, Writable] = {
            "general.architecture": "llama",
            "llama.block_count": len(names),
        }
        write_gguf(source, keys, [TensorData(name, shape, form, rows) for name in names])
    found: dict[str, list[float]] = {kind: [] for kind in RATES}
    for _ in range(ROUNDS + 1):  # the first compiles
        for kind, rates in found.items():
            with open_gguf(source) as file:
                plan = make_plan(file, QuantizeOptions(find_recipe(kind), is_pure=True))
                out = OutputFile(setup.folder / "quantised.gguf", overwrite=True)
                result = quantize_file(file, plan, out, n_threads=setup.threads)
            rates.append(result.source_bytes / result.seconds / 1e6)
    (setup.folder / "quantised.gguf").unlink()
    return [
        Figure(
            f"{kind} from F16, {setup.threads} threads", statistics.median(rates[1:]), "MB/s",
            at_least=RATES[kind], detail=spread(rates[1:]),
        )
        for kind, rates in found.items()
    ]  # fmt: skip


def attach(setup: Setup) -> list[Figure]:
    """A head, made from BF16, into a file of holes of 15 GB; beside `cp` of the same file."""
    folder = setup.folder
    target = write_sparse_qwen35(folder / "large.gguf", "Q4_0", LARGE)
    head = write_sparse_qwen35(folder / "head.gguf", "BF16", replace(LARGE, n_nextn=1))
    out, copy = folder / "out.gguf", folder / "copy.gguf"
    size = target.stat().st_size
    if shutil.disk_usage(folder).free < 1.2 * size:
        raise SystemExit(f"{folder} has no room for {size / 1e9:.0f} GB")
    try:
        flags = ["--reflink=never", "--sparse=never"] if sys.platform == "linux" else []
        copied, _ = timed(["cp", *flags, str(target), str(copy)], copy)
        copy.unlink()
        command = [sys.executable, "-c", SPEC, "convert", "attach", str(target), "--from"]
        command += [str(head), "--type", "q8_0", "--trust", "-q", "-o", str(out)]
        took, memory = timed(command, out)
    finally:
        for path in (target, head, out, copy):
            path.unlink(missing_ok=True)
    detail = {"bytes": size, "cp_seconds": copied, "attach_seconds": took}
    return [
        Figure("attach to 15 GB: peak memory", memory, "MB", at_most=MOST_MEMORY, detail=detail),
        Figure("attach to 15 GB: time", took, "s"),
        Figure("attach to 15 GB: time / cp and sync", took / copied, "x"),
    ]


def timed(command: list[str], written: Path) -> tuple[float, float]:
    """Seconds until the file is on the disk, and the most memory that was held, in MB."""
    began = time.perf_counter()
    with subprocess.Popen(command) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    with written.open("rb") as file:
        os.fsync(file.fileno())
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - began, usage.ru_maxrss * unit / 1e6
