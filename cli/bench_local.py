"""The configurations of `spec bench-spec` that run in this process, over one model."""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Final

import typer
from msgspec.structs import replace

from ..core.gguf.printable import listing
from .bench_progress import BenchProgress
from .bench_reading import flag_names
from .bench_running import BenchPlan, argv, compare
from .usage import flag_errors, with_dashes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..core.bench.gates import Gates
    from ..core.bench.local import LocalTarget
    from ..core.bench.paired_run import Schedule
    from ..core.bench.peer import PeerSettings
    from ..core.bench.record import BenchReport, PromptSet, RunSettings
    from ..core.bench.server_target import ServerTarget
    from ..core.bench.variants import SpecVariant
    from ..core.runtime import Runtime
    from .console import Console
    from .shared_options import PlaceOptions

SHOWN: Final = 5  # prompts that are left out, by name


class LocalBench:
    """One model, and what is done with it."""

    def __init__(
        self, runtime: Runtime, output: Console, schedule: Schedule, settings: RunSettings,
        place: PlaceOptions,
    ) -> None:  # fmt: skip
        self.runtime, self.output, self.place = runtime, output, place
        self.n_threads: int | None = getattr(runtime.backend, "n_threads", None)
        self.schedule, self.settings = schedule, settings
        self.progress = BenchProgress(output)

    def fitting(self, prompts: PromptSet) -> PromptSet:
        """Those that the context has room for."""
        from ..core.bench.prompt_tokens import fitting

        kept, left_out = fitting(prompts, self.runtime, self.settings)
        if left_out:
            names = listing(list(left_out), SHOWN)
            self.output.remark(
                f"left out: {names}; up to {max(left_out.values())} tokens do not fit into a "
                f"context of {self.runtime.n_ctx}, see -c"
            )
        if not kept.prompts:
            raise typer.BadParameter("no prompt fits into the context; give a larger -c")
        return kept

    def compare(
        self,
        variants: Sequence[SpecVariant],
        prompts: PromptSet,
        gates: Gates,
        save: Path | None,
        remote: Sequence[ServerTarget] = (),
    ) -> BenchReport:
        targets: list[LocalTarget | ServerTarget] = [*map(self.target, variants), *remote]
        plan = BenchPlan(prompts, self.settings, self.schedule, gates, save, self.progress)
        with self.output.cleared():
            return compare(targets, self.provenance(), plan)

    def sweep(
        self,
        variants: Sequence[SpecVariant],
        prompts: PromptSet,
        lengths: Sequence[int],
    ) -> BenchReport:
        from ..core.bench.reporting import new_report
        from ..core.bench.sweep import sweep
        from ..core.bench.variants import parse_variant

        base = next(each for each in variants if not each.is_plain)
        plain = parse_variant("none")
        target = self.target(plain)
        settings = replace(self.settings, ignore_eos=True)
        configuration = target.configuration(target)
        report = new_report(self.provenance(), prompts, settings, [configuration])
        gc.freeze()
        with flag_errors(flag_names), self.output.cleared():
            report.curve = sweep(
                target, self.target, base.options, lengths, prompts.prompts, settings,
                self.schedule, self.progress,
            )  # fmt: skip
        if not report.curve:
            report.warnings.append("too few pairs for a curve; give more prompts or repetitions")
        return report

    def target(self, variant: SpecVariant) -> LocalTarget:
        from ..core.bench.local import LocalTarget

        def spell(message: str) -> str:
            return f"--vs {variant.name}: {with_dashes(message)}"

        with flag_errors(spell), self.output.cleared():
            target = LocalTarget(self.runtime, variant)
            target.prepare(self.schedule.concurrency[0])
        return target

    def provenance(self) -> dict[str, object]:
        from ..core.bench.provenance import of_runtime, provenance

        self.output.progress("hashing the model", 0.0)
        own = provenance(argv(), self.schedule.seed)
        own |= of_runtime(self.runtime) | {"n_threads": self.n_threads}
        self.output.clear_progress()
        return own | {"type_k": self.place.cache_type_k, "type_v": self.place.cache_type_v}

    def peer_settings(self, model: Path, drafts: Sequence[Path] | None) -> PeerSettings:
        """The settings that are the same on both sides."""
        from ..core.bench.peer import PeerSettings

        place = self.place
        return PeerSettings(
            model, self.n_threads or os.cpu_count() or 1, self.runtime.n_ctx,
            max(self.schedule.concurrency), place.cache_type_k, place.cache_type_v,
            draft_model=drafts[0] if drafts else None,
        )  # fmt: skip
