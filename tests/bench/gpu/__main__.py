"""A whole step on this machine's GPU; `--ledger` counts what it moves and launches without one."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ..figures import Figure, summary, table
from . import ledger_report
from .ledger import Ledger
from .plan import PLANS


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-gpu", description=__doc__)
    parser.add_argument("--ledger", action="store_true", help="count bytes and launches, run none")
    parser.add_argument("--out", type=Path, help="where the JSON record goes")
    options = parser.parse_args()
    if options.ledger:
        print_ledger(options.out)


def print_ledger(page: Path | None) -> None:
    results: dict[str, list[Figure]] = {}
    parts = []
    for plan in PLANS:
        ledger = Ledger(plan.sizes)
        results[plan.name] = ledger_report.figures(plan, ledger)
        parts.append(ledger_report.tables(plan, ledger))
    against = f"```\n{table(results)}\n```"
    if page is not None:
        ledger_report.put_into(page, "\n\n".join([against, *parts]))
    sys.stdout.write("\n\n".join([*parts, table(results), summary(results)]) + "\n")


if __name__ == "__main__":
    main()
