"""What speculation would be worth: the speed-up by acceptance length, for every draft length.

Acceptance is drawn at random, independently of the model's agreement with its drafter. The length
at which a line crosses 1 is what a drafter has to reach here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from ..errors import ConfigError
from ..speculation.options import SpecOptions
from .counts import count
from .local import LocalTarget
from .paired_run import PairedRun, RunProgress, Schedule, paired
from .record import CurvePoint, Prompt, RunSettings, Sample
from .times import compare, decoding, times_of
from .variants import SpecVariant

PLACES: Final = (0.0, 0.25, 0.5, 0.75, 1.0)  # between one token per round and all of them


def grid(lengths: Sequence[int]) -> list[tuple[int, float]]:
    """(draft length, acceptance length)"""
    places = sorted({(n, round(1 + n * place, 2)) for n in lengths for place in PLACES})
    return [(n, length) for n, length in places if length <= n + 1]


def point_variant(base: SpecOptions, n_max: int, length: float) -> SpecVariant:
    try:
        options = replace(
            base, draft_n_max=n_max, draft_n_min=0, fixed=True, costs=None, synth_len=length
        )
    except ConfigError as error:
        raise ConfigError(f"synth: {error}") from None
    return SpecVariant(f"n={n_max} length={length:g}", options)


def sweep(
    plain: LocalTarget,
    make: Callable[[SpecVariant], LocalTarget],
    base: SpecOptions,
    lengths: Sequence[int],
    prompts: Sequence[Prompt],
    settings: RunSettings,
    schedule: Schedule,
    show: Callable[[RunProgress], None],
) -> list[CurvePoint]:
    points = grid(lengths)
    found = []
    for i, (n_max, length) in enumerate(points):
        target = make(point_variant(base, n_max, length))

        def show_point(progress: RunProgress, i: int = i, name: str = target.name) -> None:
            left = progress.seconds_left
            rest = None if left is None else left * (len(points) - i)
            show(RunProgress(f"synthetic {name}", (i + progress.done) / len(points), rest))

        runner = PairedRun(
            [plain, target], prompts, settings, _one_of(schedule, len(points)), show_point
        )
        try:
            written = paired(runner.run(), [plain.name, target.name])
        finally:
            target.close()
        point = _point(written, plain.name, target.name, n_max, length)
        if point is not None:
            found.append(point)
    return found


def _one_of(schedule: Schedule, n: int) -> Schedule:
    seconds = None if schedule.seconds is None else schedule.seconds / n
    return replace(schedule, seconds=seconds, concurrency=(1,))


def _point(
    samples: Sequence[Sample], plain: str, name: str, n_max: int, length: float
) -> CurvePoint | None:
    mine = [sample for sample in samples if sample.configuration == name]
    base = [sample for sample in samples if sample.configuration == plain]
    compared = compare(mine, base, decoding)
    if compared is None:
        return None
    rounds = times_of(mine).round_ms or 0.0
    step = times_of(base).round_ms
    return CurvePoint(
        n_max, length, count(mine).mean_len or 0.0, compared.interval(), rounds,
        rounds / step if step else None,
    )  # fmt: skip
