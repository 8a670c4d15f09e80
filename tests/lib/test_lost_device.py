"""The plugin that ends a process whose CUDA context is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import support

pytest_plugins = ["pytester"]
TORCH = """
class cuda:
    lost = False

    @staticmethod
    def is_initialized():
        return True

    @staticmethod
    def synchronize():
        if cuda.lost:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\\nmore")
"""
TESTS = """
import pytest
import torch

@pytest.mark.gpu
@pytest.mark.parametrize("n", range(4))
def test_it(n):
    if n == 1:
        torch.cuda.lost = True
    assert n == 1 or not torch.cuda.lost

def test_of_the_cpu():
    pass
"""


@pytest.fixture
def runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    pytester.makepyfile(torch=TORCH, test_it=TESTS)
    path = [str(pytester.path), str(Path(support.__path__[0]).parent)]
    monkeypatch.setenv("PYTHONPATH", ":".join(path))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # of this process, which may be one
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist")
    pytester.makeconftest('pytest_plugins = ["support.lost_device"]')
    pytester.makeini("[pytest]\nmarkers = gpu")
    return pytester


def test_another_process_runs_what_is_left(runs: pytest.Pytester) -> None:
    """The test that lost it has passed, and then crashed."""
    made = runs.runpytest_subprocess("-n", "1")
    made.stdout.fnmatch_lines(["*crashed while running*test_it?1?*"])
    made.assert_outcomes(passed=5, failed=1)


def test_without_other_processes_the_run_ends(runs: pytest.Pytester) -> None:
    made = runs.runpytest_subprocess()
    made.stdout.fnmatch_lines(["*test_it?1? left the device unusable: CUDA error: an illegal*"])
    assert made.ret == 1
