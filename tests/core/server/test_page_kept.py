"""What the server's page keeps in a browser, and how it takes what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.browser import ENTER, Browser
from support.chat_page import DONE, SCRIPTED, TEXTS, TITLES, begin, open_page, reload_page, say
from support.serving import Server

pytestmark = [pytest.mark.browser, pytest.mark.slow]

SHORT = {"max_tokens": "8", "temperature": "0", "seed": "1"}
ONE: dict[str, Any] = {
    "id": "x1",
    "changed": 5,
    "n": 3,
    "leaf": 2,
    "messages": {
        "0": {"id": 0, "parent": None, "role": "user", "content": "Of apples"},
        "1": {"id": 1, "parent": 0, "role": "assistant", "content": "Red"},
        "2": {"id": 2, "parent": 0, "role": "assistant", "content": "Green", "thought": "hm"},
    },
}


def with_message(number: str, **fields: Any) -> dict[str, Any]:
    messages = ONE["messages"] | {number: ONE["messages"][number] | fields}
    return ONE | {"messages": messages}


DAMAGED = {
    "another file": {"a": 1},
    "no conversation": [5],
    "a message whose parent is behind it": [with_message("1", parent=2)],
    "a message that is its own parent": [with_message("0", parent=0)],
    "a parent that is missing": [with_message("2", parent=-1)],
    "another role": [with_message("1", role="x onclick")],
    "content that is no text": [with_message("1", content=5)],
    "an image without an address": [with_message("0", content=[{"type": "image_url"}])],
    "a leaf that is missing": [ONE | {"leaf": 9}],
}


def test_what_was_exported_is_imported(page: Browser, server: Server, tmp_path: Path) -> None:
    page.resize(1280, 800)
    page.download_to(tmp_path)
    begin(page, server, **SHORT)
    say(page, "Of pears")
    page.click("#export-all")
    exported = tmp_path / page.downloaded()
    before = page.run(TEXTS)
    open_page(page, server)
    assert page.run(TITLES) == []
    page.choose_file("#import-file", exported)
    page.wait("return document.querySelector('#conversations .title')")
    page.click("#conversations .title")
    assert page.run(TEXTS) == before
    other = tmp_path / "other.json"
    other.write_text(json.dumps([ONE]))
    page.choose_file("#import-file", other)
    page.wait("return document.querySelectorAll('#conversations .title').length === 2")
    assert page.run(TITLES) == ["Of pears", "Of apples"]
    page.click("#conversations li:last-child .title")
    assert page.run(TEXTS)[0] == "Of apples"
    assert "2/2" in page.text(".message.assistant .versions")
    assert page.log() == []


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_conversations_are_refused(
    page: Browser, server: Server, tmp_path: Path, name: str
) -> None:
    begin(page, server)
    file = tmp_path / "damaged.json"
    file.write_text(json.dumps(DAMAGED[name]))
    page.choose_file("#import-file", file)
    page.wait("return document.querySelector('#notice.error:not([hidden])')")
    assert "damaged.json: " in page.text("#notice")
    assert page.run(TITLES) == []
    assert page.log() == []


def test_a_damaged_store_does_not_stop_the_page(page: Browser, server: Server) -> None:
    begin(page, server, **SHORT)
    say(page, "One")
    page.run(
        "localStorage.setItem('nextn-settings', '{');"
        "const names = Object.keys(localStorage).filter((each) => each.includes('conversation'));"
        "names.forEach((name) => localStorage.setItem(name, '{}'))"
    )
    reload_page(page, server)
    page.click("#tab-chat")
    assert page.run(TITLES) == []
    say(page, "Two")
    assert len(page.run(TITLES)) == 1
    assert page.log() == []


def test_a_full_store_is_said(page: Browser, server: Server) -> None:
    begin(page, server, **SHORT)
    page.run(
        "let part = 'x'.repeat(1 << 20), n = 0;"
        "while (part) try { localStorage.setItem(`filler${n++}`, part); } catch {"
        " part = part.slice(0, part.length >> 1); }"
    )
    say(page, "One")
    page.wait("return document.querySelector('#notice.error:not([hidden])')")
    assert "no room" in page.text("#notice")
    assert len(page.run(TEXTS)) == 2
    page.run("localStorage.clear()")


def test_what_another_tab_writes_is_shown(page: Browser, server: Server) -> None:
    begin(page, server, **SHORT)
    say(page, "One")
    other = (
        "const name = Object.keys(localStorage).find((each) => each.includes('conversation'));"
        "const kept = JSON.parse(localStorage.getItem(name));"
        "kept.messages[0].content = 'Two';"
        "localStorage.setItem(name, JSON.stringify(kept));"
        "dispatchEvent(new StorageEvent('storage', { key: name }))"
    )
    page.run(other)
    assert page.run(TEXTS)[0] == "Two"
    assert page.run(TITLES) == ["Two"]
    page.run(
        "const name = Object.keys(localStorage).find((each) => each.includes('conversation'));"
        "localStorage.removeItem(name);"
        "dispatchEvent(new StorageEvent('storage', { key: name }))"
    )
    assert page.run(TEXTS) == []


def test_thoughts_are_shown_apart_and_kept(page: Browser, server: Server) -> None:
    begin(page, server)
    deltas = [
        {"reasoning_content": "So *be* it. "},
        {"content": "**Yes**"},
        {"content": ", it is."},
    ]
    page.run(SCRIPTED, [{"choices": [{"delta": each}]} for each in deltas])
    say(page, "Is it?")
    assert page.text(".thoughts em") == "be"
    assert page.text(".message.assistant > .answer strong") == "Yes"
    reload_page(page, server)
    assert page.text(".thoughts em") == "be"
    assert not page.run("return document.querySelector('.thoughts').open")
    assert page.text(".message.assistant > .answer").strip() == "Yes, it is."


def test_a_request_that_fails_can_be_sent_again(page: Browser, server: Server) -> None:
    begin(page, server, **SHORT)
    page.run(SCRIPTED, [{"error": {"code": 500, "message": "the <b>engine</b> failed"}}])
    page.type("#prompt", "One" + ENTER)
    page.wait("return document.querySelector('#notice.error:not([hidden])')")
    page.wait(DONE)
    assert page.text("#notice") == "the <b>engine</b> failed"
    assert page.run(TEXTS) == ["One"]
    reload_page(page, server)
    assert page.run(TEXTS) == ["One"]
    page.click(".message.user .facts button:last-child")
    page.wait("return document.querySelector('.message.assistant')")
    page.wait(DONE)
    assert len(page.run(TEXTS)) == 2
