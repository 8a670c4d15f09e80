"""The tests' browser: what it does for a page, and that it always ends."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from support.browser import ENTER, Browser, browser
from support.devtools import DevTools, DevToolsError, chromium
from support.serving import wait_until

PAGE = """<!doctype html><title>t</title><form><input id=a><button id=b type=button
onclick="this.textContent = 'clicked'">b</button></form><button id=c style="position: absolute;
top: 0; left: 0; width: 50%; height: 50%; display: none">over</button>
<script>document.forms[0].onsubmit = () => { document.title = a.value; return false }</script>"""
URL = f"data:text/html,{quote(PAGE)}"


def is_running(group: int) -> bool:
    """Whether a process of this group does anything; who has none to reap it stays as a zombie."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def test_the_named_browser_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPEC_CHROMIUM", "/bin/sh")
    assert chromium() == "/bin/sh"
    monkeypatch.setenv("SPEC_CHROMIUM", str(tmp_path / "missing"))
    assert chromium() is None
    monkeypatch.delenv("SPEC_CHROMIUM")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert chromium() is None


@pytest.mark.browser
def test_a_page_is_typed_into_and_clicked() -> None:
    with browser() as page:
        page.open(URL)
        page.type("#a", "some text" + ENTER)
        assert page.run("return document.title") == "some text"
        page.click("#b")
        assert page.text("#b") == "clicked"
        page.run("document.querySelector('#c').style.display = 'block'")
        with pytest.raises(AssertionError, match="is covered by"):
            page.click("#b")
        with pytest.raises(AssertionError, match="is not there"):
            page.click("#none")
        with pytest.raises(DevToolsError, match="nothing"):
            page.run("throw new Error('nothing')")
        for width in (360, 1280):
            page.resize(width, 700)
            assert page.run("return innerWidth") == width
        assert page.log() == []
        page.run("console.error('seen')")
        assert page.log() == ["seen"]
        assert page.log() == []


@pytest.mark.browser
def test_the_browser_ends_with_its_test() -> None:
    groups = []

    def fail(page: Browser) -> None:
        groups.append(page.devtools.process.pid)
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError), browser() as page:  # noqa: PT011, PT012
            assert is_running(page.devtools.process.pid)
            fail(page)
    wait_until(lambda: not any(is_running(group) for group in groups))


@pytest.mark.browser
def test_a_browser_that_does_not_answer_ends() -> None:
    devtools = DevTools()
    group = devtools.process.pid
    os.killpg(group, 9)
    devtools.close()
    wait_until(lambda: not is_running(group))
