"""EAGLE3 and DFlash drafters of realistic size for the 0.8B, at a given acceptance, over plain
steps. Random weights: what they draft would never hold."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from support.drafter_files import BASE, EPS, draw, draw_d2t, facts_of, write_drafter

import nextn.core
from nextn.core.speculation.options import DFLASH, EAGLE3, SpecOptions

from .figures import Figure
from .setup import Setup
from .spec_runs import PLAIN, Task, interleaved, new_engine, ratio, spreads, write
from .spec_synth import NEVER_SLOWER, SHORT_LENGTH, random_prompts, rate

ROUNDS, N_PLAIN, N_DRAFTED, N_CTX = 5, 96, 192, 1024
HEADS, KV_HEADS, DIM, N_FF = 8, 2, 128, 3584
N_HEAD = 32000  # tokens that the head knows, as in published EAGLE3 drafters
TYPE = "Q4_K_M"
SPEC = "from nextn.cli.start import main; main()"
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Drafter:
    name: str
    n_layers: int
    n_taps: int
    n_max: int  # tokens of a draft
    length: float  # tokens of a round
    asked: float

    def shapes(self, width: int) -> Shapes:
        found: Shapes = {
            "fc.weight": (width, self.n_taps * width),
            "output_norm.weight": (width,),
            "output.weight": (N_HEAD, width),
        }
        for i in range(self.n_layers):
            found |= {f"blk.{i}.{name}.weight": x for name, x in self._block(width).items()}
        if self.name == DFLASH:
            found["enc.output_norm.weight"] = (width,)
        return found

    def _block(self, width: int) -> Shapes:
        n_in = 2 * width if self.name == EAGLE3 else width  # beside the token's own row
        shapes: Shapes = {
            "attn_norm": (width,),
            "attn_q": (HEADS * DIM, n_in),
            "attn_k": (KV_HEADS * DIM, n_in),
            "attn_v": (KV_HEADS * DIM, n_in),
            "attn_output": (width, HEADS * DIM),
            "ffn_norm": (width,),
            "ffn_gate": (N_FF, width),
            "ffn_up": (N_FF, width),
            "ffn_down": (width, N_FF),
        }
        if self.name == EAGLE3:
            return shapes | {"attn_norm_2": (width,)}
        return shapes | {"attn_q_norm": (DIM,), "attn_k_norm": (DIM,)}

    def write(self, path: Path, target: Path) -> Path:
        width, n_vocab, n_layers, vocabulary = facts_of(target)
        rng = np.random.default_rng(0)
        taps = np.linspace(1, n_layers - 1, self.n_taps).astype(int).tolist()
        keys: dict[str, Any] = {
            "block_count": self.n_layers, "context_length": N_CTX, "embedding_length": width,
            "feed_forward_length": N_FF, "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS, "attention.key_length": DIM,
            "attention.value_length": DIM, "rope.dimension_count": DIM,
            "attention.layer_norm_rms_epsilon": EPS, "rope.freq_base": BASE,
            "target_layers": taps, "vocab_size": n_vocab,
        }  # fmt: skip
        if self.name == EAGLE3:
            keys |= {"target_hidden_size": width, "norm_before_residual": True}
        else:
            keys["block_size"] = self.n_max + 1
            vocabulary["tokenizer.ggml.mask_token_id"] = n_vocab - 3
        values = {name: draw(rng, shape) for name, shape in self.shapes(width).items()}
        d2t = draw_d2t(rng, n_vocab, N_HEAD, shuffled=False)
        wide = path.with_suffix(".f32.gguf")
        write_drafter(wide, self.name, keys, vocabulary, values, d2t)
        command = ["convert", "quantize", str(wide), "-o", str(path), "--type", TYPE]
        subprocess.run([sys.executable, "-c", SPEC, *command], check=True, capture_output=True)
        wide.unlink()
        return path


DRAFTERS = (Drafter(EAGLE3, 1, 3, 5, 3.0, 1.7), Drafter(DFLASH, 5, 5, 15, 4.5, 2.2))


def networks(setup: Setup) -> list[Figure]:
    target = setup.file(TYPE)
    figures = []
    for each in DRAFTERS:
        path = setup.folder / f"{target.stem}-{each.name}.gguf"
        if not path.exists():
            each.write(path, target)
        figures += _measure(setup, target, path, each)
    return figures


def _measure(setup: Setup, target: Path, path: Path, drafter: Drafter) -> list[Figure]:
    spec = SpecOptions(types=(drafter.name,))
    asked = {drafter.length: drafter.asked, SHORT_LENGTH: NEVER_SLOWER}
    with nextn.core.load(
        target, "cpu", n_ctx=N_CTX, threads=setup.threads, spec=spec, draft=path
    ) as runtime:
        prompts, plain = random_prompts(runtime), new_engine(runtime, PLAIN)
        lengths: dict[float, list[float]] = {length: [] for length in asked}

        def drafted(length: float) -> Callable[[int], float]:
            engine = new_engine(
                runtime,
                SpecOptions(types=(drafter.name,), draft_n_max=drafter.n_max, synth_len=length),
            )

            def run(i: int) -> float:
                written = write(engine, Task(prompts[i], N_DRAFTED), 0, i, str(i))
                lengths[length].append(written.n / (written.stats.steps - 1))
                return rate(written)

            return run

        runs: Mapping[str, Callable[[int], float]] = {
            "plain": lambda i: rate(write(plain, Task(prompts[i], N_PLAIN), 0, i, "")),
            **{str(length): drafted(length) for length in asked},
        }
        found = interleaved(runs, ROUNDS)
    figures = []
    for length, least in asked.items():
        detail = spreads(found) | {"tokens of a step": lengths[length]}
        title = f"{drafter.name} of {drafter.n_max}, acceptance {length}, over plain"
        measured = ratio(found[str(length)], found["plain"])
        figures.append(Figure(title, measured, "x", least, detail=detail))
    return figures
