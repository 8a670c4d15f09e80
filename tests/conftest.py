"""Fixtures that several folders share."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator
from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from support.devtools import NAMES, chromium
from support.processors import all_processors, use_one
from support.thoroughness import COVERS_ALL

if TYPE_CHECKING:
    from support.tiny_models import TinyModel

MOST_WORKERS = 8  # each needs a gigabyte or so

pytest_plugins = ["support.second_look", "support.fewer_cases", "support.lost_device"]
use_one(os.environ.get("PYTEST_XDIST_WORKER"))
os.environ["SPEC_MODEL"] = "nano"  # tests mean the bundled model, also where SmolLM2 is installed
os.environ.setdefault("SPEC_TOKEN_COUNTS", "0")  # what random models write is worth nothing
os.environ.setdefault("SPEC_DRAFTER_RESULTS", "0")
# torch's threads wait for each other in circles, for models as small as these longer than they work
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A job in the background ignores Ctrl-C, and so would all that it starts: tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Other processes may stop ours for longer than any example takes. Outside `make test-all` the same
# examples are tried each time: what others find has no place in the run of an unrelated change.
settings.register_profile("shared processors", deadline=None, derandomize=not COVERS_ALL)
settings.load_profile("shared processors")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """As many processes as processors. One where there is but one device, where output is to be
    seen at once (-s), and for a file or two, which have ended before others could have begun."""
    is_few = len(config.args) < 3 and all(".py" in argument for argument in config.args)
    if is_few or config.option.markexpr == "gpu" or config.option.capture == "no":
        return 0
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(n, MOST_WORKERS) if n > 1 else 0


def pytest_itemcollected(item: pytest.Item) -> None:
    """A browser has many processes: its tests are among those of several threads."""
    if item.get_closest_marker("browser") is None:
        return
    item.add_marker(pytest.mark.threads)
    if chromium() is None:
        names = ", ".join(NAMES)
        item.add_marker(pytest.mark.skip(reason=f"no Chromium: neither SPEC_CHROMIUM nor {names}"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if item.get_closest_marker("threads") is None:
        return (yield)
    with all_processors():
        return (yield)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyModel]:
    """Tiny models by family name, each built once: `tiny("qwen35", mtp=True)`."""
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def build(name: str, mtp: bool = False, quantise: str = "F32") -> TinyModel:
        from support.every_family import build_family

        return build_family(name, folder, mtp=mtp, quantise=quantise)

    return build


@pytest.fixture(params=["torch", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    """Every backend that runs here."""
    name: str = request.param
    return name
