"""One server of the bundled model for all tests that do not stop it or change its settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.browser import Browser, browser
from support.serving import Server, nano_server, running

from nextn.core.speculation.options import SpecOptions


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running(nano_server()) as server:
        yield server


@pytest.fixture(scope="session")
def eager() -> Iterator[Server]:
    """Drafts whenever it can: no controller that the machine's load could make cautious."""
    with running(nano_server(spec=SpecOptions(fixed=True))) as server:
        yield server


@pytest.fixture(scope="session")
def page() -> Iterator[Browser]:
    with browser() as found:
        yield found
