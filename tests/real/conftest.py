"""One loaded SmolLM2 for all tests of a folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.real_model import smollm2

from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime


@pytest.fixture(scope="session")
def runtime() -> Iterator[Runtime]:
    with load_runtime(smollm2(), "cpu", threads=1) as loaded:
        yield loaded
