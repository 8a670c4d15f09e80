"""A pytest plugin: a process whose CUDA context is lost ends with the test that lost it.

After an illegal address or a launch that failed, every later call of CUDA in the process fails with
the same error. Workers of pytest-xdist are replaced, so the tests that follow are run by another.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if item.get_closest_marker("gpu") and (error := lost_device()):
        end_process(item.nodeid, error)
    return result


def lost_device() -> str | None:
    """What CUDA says, if this process can do nothing more on its device."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return None


def end_process(test: str, error: str) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER") is None:
        pytest.exit(f"{test} left the device unusable: {error}", returncode=1)
    sys.stderr.write(f"{test} left the device unusable: {error}\n")
    sys.stderr.flush()
    os._exit(1)  # its report has been sent
