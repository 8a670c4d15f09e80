"""What sections work with: random files, written when first asked for, and single steps."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from support import llama_quantize, random_file, random_shapes
from support.random_file import Sizes, write_random
from support.random_oss import write_random_oss

from nextn.core.backend.cpu.backend import CpuBackend
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.team import Team
from nextn.core.backend.interface import HostOutput, StateRoom
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.core.state.sizes import PAGE_LEN

MIXTURES = ("Q4_0", "Q4_K_M", "Q8_0")
WINDOW = 16  # rows whose factors are kept: the widest step that is measured

_FILES: dict[str, tuple[str, Sizes]] = {
    **{mixture: (mixture, random_shapes.QWEN35_800M) for mixture in MIXTURES},
    **{f"{mixture}-mtp": (mixture, random_shapes.QWEN35_800M_MTP) for mixture in MIXTURES},
    "qwen3": ("Q4_K_M", random_shapes.QWEN3_600M),
    "moe": ("Q4_K_M", random_shapes.QWEN35_MOE_2B),
    "small": ("Q8_0", random_shapes.QWEN35_12M),
    "wide": ("Q4_K_M", replace(random_shapes.QWEN35_800M, n_vocab=151936)),
}


@dataclass(frozen=True)
class Setup:
    threads: int
    folder: Path  # of the random files

    def oss(self) -> Path:
        path = self.folder / "gpt-oss.gguf"
        return path if path.exists() else write_random_oss(path)

    def file(self, name: str) -> Path:
        mixture, sizes = _FILES[name]
        digest = hashlib.sha256(repr((mixture, sizes)).encode())
        for module in (random_file, random_shapes, llama_quantize):
            digest.update(Path(str(module.__file__)).read_bytes())
        path = self.folder / f"{name}-{digest.hexdigest()[:12]}.gguf"
        return path if path.exists() else write_random(path, mixture, sizes)


class Stepper:
    """Steps of one sequence through a file, without engine and sampler."""

    def __init__(
        self,
        path: Path,
        threads: int,
        n_cells: int = 1024,
        max_rows: int = 512,
        make_team: Callable[[Kernels, int], Team] | None = None,
    ) -> None:
        self.backend = CpuBackend(threads)
        if make_team is not None:
            self.backend.team.close()
            self.backend.team = make_team(self.backend.kernels, threads)
        self.model = build_model(open_gguf(path), self.backend)
        self.pages = range(-(-n_cells // PAGE_LEN))
        self.state = self.backend.new_state(
            self.model.state_shape,
            StateRoom(n_pages=len(self.pages), page_len=PAGE_LEN, n_slots=1, window=WINDOW),
        )
        self.run: Callable[[Step], HostOutput] = self.backend.compile(
            self.model.forward, self.state, max_rows=max_rows
        )
        rng = np.random.default_rng(0)
        self.tokens: list[int] = rng.integers(0, self.model.hparams.n_vocab, max_rows).tolist()

    def prompt(self, n_rows: int) -> Step:
        return build_step([StepPart(self.tokens[:n_rows], 0, self.pages)])

    def step(self, n_rows: int, past: int) -> Step:
        """As verifying has it: every row's logits, and all rows of a step before it held."""
        tokens, replay = self.tokens[:n_rows], min(n_rows, WINDOW)
        return build_step(
            [StepPart(tokens, past, self.pages, n_pending_accepted=replay, n_out=n_rows)]
        )

    def ms(self, step: Step) -> float:
        start = time.perf_counter()
        self.run(step)
        return 1000 * (time.perf_counter() - start)

    def interleaved(self, steps: Sequence[Step], rounds: int) -> list[list[float]]:
        """Milliseconds of each step, one of each in every round, the first of which is thrown away.

        Twice in a row, of which the second counts: what a step finds in the caches is then what
        its own kind left there.
        """
        times: list[list[float]] = [[] for _ in steps]
        for _ in range(rounds + 1):
            for step, found in zip(steps, times, strict=True):
                self.ms(step)
                found.append(self.ms(step))
        return [found[1:] for found in times]
