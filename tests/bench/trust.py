"""Can `spec bench-spec` be believed? One configuration against itself, and against itself with a
planted slow-down, many times; by the code that the command runs.

    PYTHONPATH=tests:tests/lib python -m bench.trust same --runs 200 --out record.json
    PYTHONPATH=tests:tests/lib python -m bench.trust slow --runs 20 --seconds 12 --out record.json

`same`: the interval should cover 1 in 95 % of the runs, and a gate at 1.0 be missed in none.
`slow`: the gate should be missed. A record that is there already is added to, so that a run may
be made in pieces.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from support.benching import SlowTarget

from nextn.cli.bench_running import BenchPlan, compare
from nextn.core import nano
from nextn.core.bench.gates import SPEEDUP, Gates
from nextn.core.bench.local import LocalTarget
from nextn.core.bench.paired_run import Schedule
from nextn.core.bench.provenance import provenance
from nextn.core.bench.record import BenchReport, PromptSet, RunSettings
from nextn.core.bench.variants import SpecVariant, common_options, parse_variant
from nextn.core.bench.workloads import built_in, selected
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime

CATEGORIES: Final = ("code", "edit", "explain", "summarise", "extract", "translate", "creative",
                     "maths")  # fmt: skip
N_TOKENS: Final = 32
GATE: Final = Gates(min_speedup=1.0)
KINDS: Final = {"same": LocalTarget, "slow": SlowTarget}


def one_run(
    runtime: Runtime, variant: SpecVariant, kind: str, prompts: PromptSet, schedule: Schedule
) -> dict[str, Any]:
    targets = [LocalTarget(runtime, variant), KINDS[kind](runtime, variant)]
    targets[1].name = kind
    plan = BenchPlan(prompts, RunSettings(max_tokens=N_TOKENS, ignore_eos=True), schedule, GATE,
                     None, lambda _: None)  # fmt: skip
    began = time.perf_counter()
    report = compare(targets, {}, plan)
    return {"kind": kind, "seconds": round(time.perf_counter() - began, 1), **_found(report)}


def _found(report: BenchReport) -> dict[str, Any]:
    if report.provenance.get("interrupted"):
        raise KeyboardInterrupt
    (times,) = (
        summary.times
        for summary in report.summaries
        if summary.configuration in KINDS and not summary.category
    )
    assert times.speedup is not None
    (gate,) = (gate for gate in report.gates if gate.gate == SPEEDUP)
    ratios = [round(value, 4) for value in times.speedup]
    others = report.provenance["machine"].get("others")
    return {"low_value_high": ratios, "missed": not gate.ok, "others_cpu": others}


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    low, _, high = zip(*(run["low_value_high"] for run in runs), strict=True)
    return {
        "runs": len(runs),
        "covers_1": sum(a <= 1 <= b for a, b in zip(low, high, strict=True)),
        "gate_missed": sum(run["missed"] for run in runs),
        "median_width": round(median(b - a for a, b in zip(low, high, strict=True)), 4),
        "median_seconds": median(run["seconds"] for run in runs),
    }


def note_origin(known: list[dict[str, Any]], first_run: int) -> None:
    """Once for all pieces that were run alike."""
    origin = provenance(sys.argv[1:], first_run)
    fleeting = ("seed", "load_average_before", "test_time")
    lasting = {name: value for name, value in origin.items() if name not in fleeting}
    if not any(lasting.items() <= each.items() for each in known):
        known.append({"first_run": first_run, "test_time": origin["test_time"]} | lasting)


def read_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seconds", type=float, help="each; else five repetitions")
    parser.add_argument("--vs", default="none", help="the configuration")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def main() -> None:
    flags = read_flags()
    variant = parse_variant(flags.vs)
    prompts = selected(built_in("code"), CATEGORIES, 1)
    load = partial(load_runtime, nano.path(), "cpu", n_ctx=2048, threads=flags.threads)
    record: dict[str, Any] = {"summary": {}, "provenance": [], "runs": []}
    if flags.out.exists():
        record = json.loads(flags.out.read_text(encoding="utf-8"))
    runs = record["runs"]
    note_origin(record["provenance"], len(runs))
    with load(spec=common_options([variant])) as runtime:
        for _ in range(flags.runs):
            schedule = Schedule(seconds=flags.seconds, seed=len(runs))
            runs.append(one_run(runtime, variant, flags.kind, prompts, schedule))
            record["summary"] = {
                kind: summary(of)
                for kind in KINDS
                if (of := [run for run in runs if run["kind"] == kind])
            }
            flags.out.write_text(_text(record), encoding="utf-8")
    sys.stdout.write(json.dumps(record["summary"], indent=1) + "\n")


def _text(record: dict[str, Any]) -> str:
    """A line for each run."""
    head = json.dumps({name: record[name] for name in ("summary", "provenance")}, indent=1)
    lines = ",\n".join(map(json.dumps, record["runs"]))
    return head.removesuffix("\n}") + ',\n "runs": [\n' + lines + "\n]}\n"


if __name__ == "__main__":
    main()
