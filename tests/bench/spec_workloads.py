"""Six kinds of work for the bundled model, as prompts, and as texts where it is told what to write.

It completes Python and copies nothing, so that an edit is dictated: see `spec_runs.Dictated`.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

from nextn.core.runtime import Runtime

from .spec_runs import Task

DATA = Path(__file__).parents[1] / "data"
EDITS = ("ledger", "station", "manual")
N_TEXTS, N_TOKENS = 4, 128
KINDS = ("code", "prose", "edit", "json", "random", "mixed")

PROSE = (
    '"""How to read a file line by line.\n\nOpen the file and go through its lines. Each line ends '
    "with a newline, except perhaps the last one.\nIf the file is large, do not read all of it at "
    "once. The following",
    '"""The calendar of a year.\n\nA year has twelve months, and a month has four weeks and some '
    "days more. The first day of the week\nis Monday unless the caller says otherwise. This module",
    '"""Sending messages to other threads.\n\nA queue holds what one thread has put there until '
    "another takes it. When it is empty, the one who\nwants to take something has to wait. It is",
    '"""Words that are not in the dictionary.\n\nThe reader is expected to know the language. What '
    "is explained here are the words that have another\nmeaning in this book than elsewhere:",
)
RECORD = '  {{"id": {0}, "name": "item {0}", "price": {1}.50, "colour": "{2}", "stock": {3}}}'


def tasks(runtime: Runtime, kind: str) -> list[Task]:
    if kind == "mixed":
        # Pieces of all in turn.
        return [tasks(runtime, other)[i % N_TEXTS] for i, other in enumerate(KINDS[:-1])]
    if kind == "edit":
        made = [edit(runtime, name) for name in EDITS]
        return [*made, made[0]]
    if kind == "random":
        rng = np.random.default_rng(1)
        rows = rng.integers(8, runtime.n_vocab, (N_TEXTS, 64)).tolist()
        return [Task(row, N_TOKENS) for row in rows]
    texts = {"code": held_out()[:N_TEXTS], "prose": PROSE, "json": _json_texts()}[kind]
    return [Task(encode(runtime, text), N_TOKENS) for text in texts]


def edit(runtime: Runtime, name: str) -> Task:
    before, after = (
        (DATA / "edits" / f"{name}.{which}.txt").read_text(encoding="utf-8")
        for which in ("before", "after")
    )
    script = runtime.tokenizer.encode(after, add_special=False, parse_special=False)
    prompt = encode(runtime, f"{before}\n# The same with some changes:\n\n")
    return Task(prompt, len(script), script)


@cache
def held_out() -> list[str]:
    text = (DATA / "nano-prompts.json").read_text(encoding="utf-8")
    prompts: list[str] = json.loads(text)["prompts"]
    return prompts


def encode(runtime: Runtime, text: str) -> list[int]:
    return runtime.tokenizer.encode(text, parse_special=False)


def _json_texts() -> list[str]:
    """Lists of records, the last one begun."""
    made = []
    for seed in range(N_TEXTS):
        rng = np.random.default_rng(seed)
        kinds = ("red", "green", "blue")
        records = [
            RECORD.format(i, rng.integers(1, 90), kinds[rng.integers(3)], rng.integers(100))
            for i in range(1, 7)
        ]
        made.append("[\n" + ",\n".join(records)[:-40])
    return made
