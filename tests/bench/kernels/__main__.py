"""Measure every CUDA kernel on this machine's GPU; `--dry` tries all cases on the CPU instead."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shim.machine import host_problem

from nextn.cuda_kernels.device import unavailable_reason

from ..figures import Figure, summary, table
from ..provenance import Moment
from ..record import Record
from . import (
    attention_cases,
    delta_cases,
    dequant_cases,
    head_cases,
    moe_cases,
    pair_cases,
    plain_cases,
    probes,
    product_cases,
    prompt_cases,
    recurrence_cases,
    round_cases,
    row_cases,
    state_cases,
)
from .case import Case, run, wrong
from .models import MODELS, Sizes, tiny
from .place import DevicePlace, DryPlace, Place, pause
from .provenance import device, provenance

# Cases of a kernel family, by the section that they are in: one row for each file of cases.
FAMILIES: dict[str, Callable[[Sizes], Iterator[Case]]] = {
    "embed": row_cases.embeddings,
    "norm_quant": row_cases.norms,
    "gate_rows": row_cases.gates,
    "activate_rows": recurrence_cases.activations,
    "convolve_rows": row_cases.convolutions,
    "sum_rows": row_cases.sums,
    "head_products": row_cases.head_matrices,
    "dequant": dequant_cases.expansions,
    "mm_bf16_skinny": plain_cases.products,
    "qmm": product_cases.products,
    "qmm_pair": pair_cases.pairs,
    "gdn_step": delta_cases.steps,
    "gdn_rows": delta_cases.rows,
    "attn_prep": attention_cases.preparing,
    "attn_verify": attention_cases.verifying,
    "attn_scalar": attention_cases.capped,
    "attn_combine": attention_cases.combining,
    "attn_prefill": prompt_cases.attending,
    "gdn_chunk": prompt_cases.chunks,
    "wide_rows": prompt_cases.between,
    "gdn_state": state_cases.states,
    "page_copy": state_cases.pages,
    "recurrence_parts": recurrence_cases.recurrences,
    "moe_route": moe_cases.routing,
    "qmm_moe": moe_cases.quantised,
    "mm_moe": moe_cases.plain,
    "head_pick": head_cases.picking,
    "draft_pick": round_cases.drafting,
    "spec_accept": round_cases.settling,
    "round_times": round_cases.clocks,
}
SECTIONS = ("bandwidth", "gaps", *FAMILIES)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-kernels", description=__doc__)
    parser.add_argument("--only", type=_names, default=list(SECTIONS), metavar="NAME[,NAME...]")
    parser.add_argument("--match", type=_pattern, help="cases in whose names this is found")
    parser.add_argument("--out", type=Path, help="where the JSON record goes")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU, no figures")
    options = parser.parse_args()
    if not options.dry and (reason := unavailable_reason()):
        raise SystemExit(f"no kernel can be measured here: {reason}")
    if options.dry and (reason := host_problem()):
        raise SystemExit(f"the CPU shim cannot run here: {reason}")
    place = DryPlace() if options.dry else DevicePlace()
    check_match(place, options.only, options.match)
    faults = measure(place, options.only, options.out, options.match)
    if faults:
        raise SystemExit("\n".join(["wrong results:", *faults]))
    if options.dry:
        _say("all cases ran on the CPU and are right; nothing was measured")


def check_match(place: Place, names: list[str], match: re.Pattern[str] | None) -> None:
    """A pattern that fits no case would measure nothing and find nothing wrong."""
    if match is None:
        return
    if not any(True for name in names if name in FAMILIES for _ in cases(name, place, match)):
        raise SystemExit(f"--match {match.pattern!r} is found in no case of {', '.join(names)}")


def measure(
    place: Place,
    names: list[str],
    out: Path | None = None,
    match: re.Pattern[str] | None = None,
) -> list[str]:
    """Prints figures, writes the record; complaints about wrong results."""
    record = Record(out, provenance(names))
    results: dict[str, list[Figure]] = {}
    faults: list[str] = []
    copied, figures = probes.bandwidth(place)
    for name in names:
        _say(name)
        start, before = Moment.now(), device()
        if name == "gaps":
            figures = probes.gaps(place)
        elif name in FAMILIES:
            figures, bad = family(name, place, copied, match)
            faults += bad
        results[name] = figures
        facts: dict[str, Any] = {"copied_gb_per_s": copied / 1e9, **start.until_now()}
        facts |= {"device_before": before, "device_after": device()}
        if not place.is_dry:
            record.add(name, facts | {"figures": [figure.as_json() for figure in figures]})
            pause()
    if not place.is_dry:
        sys.stdout.write(f"{record.text()}\n{table(results)}\n\n{summary(results)}\n")
    return faults


def family(
    name: str, place: Place, copied: float, match: re.Pattern[str] | None = None
) -> tuple[list[Figure], list[str]]:
    figures: list[Figure] = []
    faults: list[str] = []
    for case in cases(name, place, match):
        _say(f"  {case.name}")
        outcome = run(case, place)
        figures += outcome.figures(copied)
        faults += wrong([outcome])
    return figures, faults


def cases(name: str, place: Place, match: re.Pattern[str] | None) -> Iterator[Case]:
    for sizes in MODELS:
        for case in FAMILIES[name](tiny(sizes) if place.is_dry else sizes):
            if match is None or match.search(case.name):
                yield case


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in names if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(
            f"no section {unknown[0]!r}; choose from {', '.join(SECTIONS)}"
        )
    return names or list(SECTIONS)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
