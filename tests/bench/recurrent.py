"""Mamba-2 and short convolutions beside llama.cpp: plain decoding, and prompts."""

from __future__ import annotations

from support.recurrent_files import FILES, write_recurrent

from .decode import decode_figure, measure
from .figures import Figure
from .setup import Setup

DECODE_ASKED = 1.2


def recurrent(setup: Setup) -> list[Figure]:
    figures = []
    for name in FILES:
        path = setup.folder / f"{name}-Q4_K_M.gguf"
        if not path.exists():
            write_recurrent(path, name)
        decode, prompts = measure(path, setup.threads, prompt_rounds=3)
        figures.append(decode_figure(f"{name} Q4_K_M", decode, DECODE_ASKED))
        figures.append(Figure(f"{name}: prompt / xllamacpp", prompts.ratio, "x"))
    return figures
