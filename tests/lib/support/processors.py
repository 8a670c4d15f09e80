"""Which processors a worker of pytest uses: one of its own.

Two workers whose engines have two threads each wait for each other on two processors, for longer
than they work."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

HAS_AFFINITY = hasattr(os, "sched_setaffinity")  # Linux
ALL = sorted(os.sched_getaffinity(0)) if HAS_AFFINITY else []


def use_one(worker: str | None) -> None:
    """`worker`: as xdist names it, `gw0` and so on; None where there are no workers."""
    if worker is not None and ALL:
        number = int(re.sub(r"\D", "", worker) or 0)
        os.sched_setaffinity(0, {ALL[number % len(ALL)]})


@contextmanager
def all_processors() -> Iterator[None]:
    """For a test of several threads."""
    if not ALL:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, ALL)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
