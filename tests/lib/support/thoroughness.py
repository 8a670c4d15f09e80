"""How much a run of the tests covers: everything under `make test-all`, a share of it elsewhere."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
COVERS_ALL = os.environ.get("SPEC_TEST_ALL") == "1"


def share(items: Sequence[T], n: int) -> Sequence[T]:
    """All of them, or `n` of them: the same ones in every run."""
    if COVERS_ALL or len(items) <= n:
        return items
    return [items[i] for i in sorted(random.Random(len(items)).sample(range(len(items)), n))]


def n_examples(n: int) -> int:
    """How many examples hypothesis tries of `n`."""
    return n if COVERS_ALL else min(n, max(10, n // 4))
