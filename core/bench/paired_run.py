"""Paired, interleaved runs: A B, B A, … on the same prompt, until enough is known.

The order of prompts in a repetition and that of configurations in a pair are drawn anew each time
from the seed, so that neither is favoured by what ran before it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from .disturbed import Pair, pair_of, undisturbed
from .intervals import MIN_BLOCKS, resample
from .record import Prompt, RunSettings, Sample, Target
from .times import blocks, decoding

WARM_UP: Final = -1  # as a repetition
GROUP: Final = 4  # times as many prompts as users: so that all users are busy most of the time
_CHECKED_DRAWS: Final = 800
_LOOKS_APART: Final = 1.1
_N_WARM: Final = 2  # prompts of a warm-up


class Schedule(Struct, frozen=True):
    repeat: int = 5
    seconds: float | None = None  # until then repetitions go on, or until all is precise
    precision: float = 0.01  # half the width of intervals, by the ratio, that is enough
    warm_up: int = 1  # times that each configuration writes two prompts first
    concurrency: tuple[int, ...] = (1,)
    seed: int = 0


class RunProgress(Struct, frozen=True):
    stage: str
    done: float  # 0 to 1
    seconds_left: float | None


@dataclass
class PairedRun:
    """`samples` grows while it runs: what was written stays when it is interrupted."""

    targets: Sequence[Target]  # the first is the baseline
    prompts: Sequence[Prompt]
    settings: RunSettings
    schedule: Schedule
    show: Callable[[RunProgress], None] = lambda _: None
    after_each: Callable[[], None] = lambda: None  # repetition
    samples: list[Sample] = field(default_factory=list)
    _began: float = 0.0
    _n_order: int = 0
    _next_look: int = 0  # repetition

    def run(self) -> list[Sample]:
        self._began = time.perf_counter()
        n = len(self.schedule.concurrency)
        for i, concurrency in enumerate(self.schedule.concurrency):
            seconds = self.schedule.seconds
            until = None if seconds is None else self._began + seconds * (i + 1) / n
            self._run_at(concurrency, until, i / n, 1 / n)
        return self.samples

    def _run_at(self, concurrency: int, until: float | None, done: float, share: float) -> None:
        self._warm_up(concurrency, done)
        self._next_look = 0
        groups = self._groups(concurrency)
        rng = random.Random(f"{self.schedule.seed} {concurrency}")
        repetition, began = 0, time.perf_counter()
        while self._goes_on(repetition, until, concurrency):
            order = list(enumerate(groups))
            rng.shuffle(order)
            for n_done, (group, prompts) in enumerate(order):
                is_enough = bool(repetition) or n_done >= MIN_BLOCKS
                if until is not None and is_enough and time.perf_counter() > until:
                    return
                self._show_stage(repetition, n_done / len(order), until, began, done, share)
                targets = list(self.targets)
                rng.shuffle(targets)
                for target in targets:
                    self._write(target, prompts, concurrency, repetition, group)
            repetition += 1
            self.after_each()

    def _goes_on(self, repetition: int, until: float | None, concurrency: int) -> bool:
        if until is None:
            return repetition < self.schedule.repeat
        if not repetition:
            return True
        if time.perf_counter() > until:
            return False
        if repetition < max(self.schedule.repeat, self._next_look):
            return True
        # Looking takes time that grows with what there is to look at.
        self._next_look = int(repetition * _LOOKS_APART) + 1
        return not self._is_precise(concurrency)

    def _is_precise(self, concurrency: int) -> bool:
        """Looks at how wide the intervals are, never at where they lie: stopping at a welcome
        figure would make it wrong."""
        here = [sample for sample in self.samples if sample.concurrency == concurrency]
        now = paired(here, [target.name for target in self.targets])
        by_name = {t.name: [s for s in now if s.configuration == t.name] for t in self.targets}
        base, *others = (target.name for target in self.targets)
        for name in others:
            pairs = blocks(by_name[name], by_name[base], decoding)
            found = resample(pairs, n_draws=_CHECKED_DRAWS)
            if found is None:
                return False
            low, value, high = found.interval()
            if high - low > 2 * self.schedule.precision * value:
                return False
        return True

    def _warm_up(self, concurrency: int, done: float) -> None:
        prompts = list(self.prompts[:: max(1, len(self.prompts) // _N_WARM)])[:_N_WARM]
        for _ in range(self.schedule.warm_up):
            for target in self.targets:
                self.show(RunProgress(f"warming up {target.name}", done, None))
                for _sample in target.run(prompts, self.settings, concurrency):
                    pass

    def _groups(self, concurrency: int) -> list[list[Prompt]]:
        """The prompts that a target gets at once."""
        prompts = list(self.prompts)
        size = 1 if concurrency == 1 else GROUP * concurrency
        return [prompts[i : i + size] for i in range(0, len(prompts), size)]

    def _write(
        self,
        target: Target,
        prompts: Sequence[Prompt],
        concurrency: int,
        repetition: int,
        group: int,
    ) -> None:
        written = list[Sample]()
        for sample in target.run(prompts, self.settings, concurrency):
            now = time.perf_counter() - self._began
            sample.started_s = now - sample.total_ms / 1000
            sample.repetition, sample.group = repetition, group
            sample.order, self._n_order = self._n_order, self._n_order + 1
            written.append(sample)
        # All turns or none: a pair with half a chat on one side would be no pair.
        self.samples += written

    def _show_stage(
        self, n_repetitions: int, part: float, until: float | None, began: float, done: float,
        share: float,
    ) -> None:  # fmt: skip
        now, repeat = time.perf_counter(), self.schedule.repeat
        left: float | None = None
        if until is not None:
            own, left = (now - began) / max(until - began, 1e-9), max(0.0, until - now)
        else:
            own = (n_repetitions + part) / repeat
            if own > 0:
                left = (now - began) * (1 - own) / own
        own = min(1.0, own)
        stage = f"repetition {n_repetitions + 1}"
        stage += f" of {repeat}" if until is None else ""
        self.show(RunProgress(stage, done + share * own, left))


def paired(samples: Sequence[Sample], names: Sequence[str]) -> list[Sample]:
    """Complete pairs that nothing disturbed: what times are taken from."""
    return undisturbed(list(complete(samples, names)))


def complete(samples: Sequence[Sample], names: Sequence[str]) -> Iterator[Sample]:
    """Those whose partners were written, too: what an interrupt leaves half done is left out, and
    so are texts that failed, with their partners."""
    wrong = {pair_of(sample) for sample in samples if sample.error}
    seen: dict[Pair, set[str]] = {}
    for sample in samples:
        seen.setdefault(pair_of(sample), set()).add(sample.configuration)
    for sample in samples:
        pair = pair_of(sample)
        if pair not in wrong and len(seen[pair]) == len(names):
            yield sample
