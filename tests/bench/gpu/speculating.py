"""Rounds of drafting and verifying: MTP heads, and n-grams in a text that repeats."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from functools import partial

from nextn.core.engine.engine import Engine
from nextn.core.speculation.options import (
    NGRAM_MOD,
    NGRAM_SIMPLE,
    NgramModSizes,
    NgramSizes,
    SpecOptions,
)

from ..figures import Figure, spread
from ..spec_runs import PLAIN, Task, fixed_mtp, new_engine, write
from .loaded import Loaded

LENGTHS = {1: 1.7, 2: 2.5, 3: 3.3, 4: 3.8, 5: 4.2}  # tokens of a round, by tokens drafted
SHORT_HEAD = 65536
ASKED = {("27B", 3): 450.0, ("35B-A3B", 2): 1300.0}
SHOWN = (1.5, 2.0, 2.5, 3.0, 3.3, 4.0, 5.0)  # acceptance lengths in the record
REPEATED = 64  # tokens of the piece that a text repeats


@dataclass
class DeviceLoop:
    """Fixed drafts of an engine, and what its rounds took and brought."""

    engine: Engine
    ms: list[float] = field(default_factory=list)
    tokens: list[float] = field(default_factory=list)

    def run(self, loaded: Loaded, i: int) -> float:
        task = Task(loaded.tokens(loaded.scale.n_prompt, i), loaded.scale.tokens)
        written = write(self.engine, task, 0, i, str(i))
        n = max(1, written.stats.steps - 1)  # the first one read the prompt
        if i:
            self.ms.append(1e3 * written.seconds / n)
            self.tokens.append(written.n / n)
        return written.n / written.seconds


def mtp(loaded: Loaded, seconds: float) -> list[Figure]:
    """The coins of so few rounds do not bring exactly the length that they were made for: what is
    judged is the time of a round, as if it had brought that."""
    n_vocab = loaded.runtime.n_vocab
    heads = {"full head": "full", "short head": str(min(SHORT_HEAD, n_vocab // 2))}
    rounds = {
        (n, head): DeviceLoop(_engine(loaded, n, vocab))
        for n in loaded.scale.mtp
        for head, vocab in heads.items()
    }
    engine = new_engine(loaded.runtime, PLAIN)
    runs = {"plain": partial(DeviceLoop(engine).run, loaded)}
    runs |= {f"{n} {head}": partial(one.run, loaded) for (n, head), one in rounds.items()}
    found = loaded.place.interleaved(runs, seconds)
    plain = statistics.median(found["plain"])
    figures = [Figure("plain", plain, "tokens/s", detail={"rates": spread(found["plain"])})]
    for (n, head), one in rounds.items():
        figures += _of_rounds(loaded, n, head, one, plain)
    return figures


def _engine(loaded: Loaded, n: int, vocab: str) -> Engine:
    options = fixed_mtp(n, synth_len=LENGTHS[n], draft_vocab=vocab)
    return new_engine(loaded.runtime, options)


def _of_rounds(loaded: Loaded, n: int, head: str, one: DeviceLoop, plain: float) -> list[Figure]:
    ms, length = statistics.median(one.ms), LENGTHS[n]
    rate = 1e3 * length / ms
    detail = {
        "round_ms": spread(one.ms),
        "tokens_of_a_round": statistics.fmean(one.tokens),
        "tokens_per_s_at": {str(at): 1e3 * at / ms for at in SHOWN if at <= n + 1},
    }
    asked = ASKED.get((loaded.plan.name, n))
    name = f"mtp n={n}, {head}"
    return [
        Figure(f"{name}: at length {length}", rate, "tokens/s", at_least=asked, detail=detail),
        Figure(f"{name}: over plain", rate / plain, "x"),
        Figure(f"{name}: a round", ms, "ms"),
    ]


def ngrams(loaded: Loaded, seconds: float) -> list[Figure]:
    """The target is made to repeat its prompt, so that all of what n-grams draft holds."""
    piece = loaded.tokens(REPEATED, 7)
    n_tokens = 4 * loaded.scale.tokens
    script = (piece * (2 + n_tokens // REPEATED))[: n_tokens + 1]
    short, long = min(loaded.scale.long_drafts), max(loaded.scale.long_drafts)
    simple = NgramSizes(size_n=loaded.scale.matched, size_m=short)
    mod = NgramModSizes(n_match=2 * loaded.scale.matched, n_min=short, n_max=long)
    options = {
        "plain": PLAIN,
        f"ngram-simple of {short}": SpecOptions((NGRAM_SIMPLE,), fixed=True, ngram_simple=simple),
        f"ngram-mod of {long}": SpecOptions((NGRAM_MOD,), fixed=True, ngram_mod=mod),
    }
    engines = {name: new_engine(loaded.runtime, made) for name, made in options.items()}
    lengths: dict[str, list[float]] = {name: [] for name in options}

    def rate(name: str, i: int) -> float:
        written = write(engines[name], Task(piece, n_tokens, script), 0, i, f"{name} {i}")
        lengths[name].append(written.n / max(1, written.stats.steps - 1))
        return written.n / written.seconds

    found = loaded.place.interleaved({name: partial(rate, name) for name in options}, seconds)
    figures = []
    for name, rates in found.items():
        detail = {"rates": spread(rates), "tokens_of_a_round": statistics.fmean(lengths[name])}
        figures.append(Figure(name, statistics.median(rates), "tokens/s", detail=detail))
    return figures
