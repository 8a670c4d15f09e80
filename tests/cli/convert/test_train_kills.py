"""`spec convert train` under signals at random points of each stage: the bytes are the same."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from support.network_drafts import Tiny
from support.thoroughness import COVERS_ALL

SPEC = [sys.executable, "-c", "from nextn.cli.start import main; main()"]
LARGE = ("--tokens", "16000", "--steps", "80", "--threads", "1", "--no-judge")
N_KILLS = 2 if COVERS_ALL else 1  # in each stage
STAGES = ("texts", "features", "training", "file")
TERMINATED = 143
TRAINED = re.compile(rb"training +(100%|goes on from step 80)")


CASES = (
    ("llama", "eagle3"),
    pytest.param("qwen35", "mtp", marks=pytest.mark.exhaustive),
)


class Whole(NamedTuple):
    """What a run that nothing stopped has left."""

    output: bytes
    texts: int
    features: int  # bytes


class Run:
    def __init__(self, model: Path, kind: str, folder: Path) -> None:
        self.output, self.work = folder / "d.gguf", folder / "d.gguf.work"
        self.said = folder / "said.txt"
        words = ["convert", "train", "-m", model, "-o", self.output, "--kind", kind, *LARGE]
        self._command = [*SPEC, *map(str, words)]

    def start(self) -> subprocess.Popen[bytes]:
        with self.said.open("wb") as said:
            return subprocess.Popen(self._command, stderr=said)

    def lines(self) -> list[bytes]:
        return self.said.read_bytes().splitlines()

    def size(self, name: str) -> int:
        path = self.work / name
        return path.stat().st_size if path.exists() else 0

    def n_texts(self) -> int:
        path = self.work / "texts.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def whole(self) -> Whole:
        assert self.start().wait() == 0, self.said.read_text()
        return Whole(self.output.read_bytes(), self.n_texts(), self.size("features.f16"))

    def has_reached(self, stage: str, part: float, whole: Whole) -> Callable[[], bool]:
        """Whether so much of the stage is done."""
        if stage == "texts":
            return lambda: self.n_texts() > part * whole.texts
        if stage == "features":
            return lambda: self.size("features.f16") > part * whole.features
        if stage == "training":
            # Five lines before the last one, and the checkpoint of step 50 before the fourth.
            return lambda: sum(line.startswith(b"training") for line in self.lines()) > 4 * part
        tried = ("F16.gguf", "Q8_0.gguf", "Q4_1.gguf")[int(3 * part)]
        return lambda: self.size(tried) > 0 and any(map(TRAINED.match, self.lines()))


def ended_by(signal_number: int, run: Run, reached: Callable[[], bool]) -> int:
    """The code that the process ends with, by the signal where it had not ended before."""
    process = run.start()
    while process.poll() is None and not reached():
        time.sleep(0.001)
    process.send_signal(signal_number)
    return process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), CASES)
def test_a_killed_run_ends_with_the_same_bytes(
    family: str, kind: str, tiny: Tiny, tmp_path: Path
) -> None:
    model, rng = tiny(family, mtp=kind == "mtp").path, random.Random(kind)
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole = Run(model, kind, tmp_path / "whole").whole()
    run = Run(model, kind, tmp_path / "killed")
    signals = rng.sample([signal.SIGKILL, signal.SIGTERM], 2) * N_KILLS
    for i, stage in enumerate(STAGES):
        parts = sorted(rng.random() for _ in range(N_KILLS))
        for part, number in zip(parts, signals[i % 2 :], strict=False):
            code = ended_by(number, run, run.has_reached(stage, part, whole))
            # Near its end the process may be faster than what watches it.
            if stage == "file" and code == 0:
                run.output.unlink()
                continue
            assert code in (-number, TERMINATED), (stage, part, run.said.read_text())
            assert not run.output.exists()
    assert run.whole().output == whole.output
