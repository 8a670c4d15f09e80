"""Conversations on the server's page, in a real browser at three widths."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from support.browser import CONTROL, DOWN, ENTER, ESCAPE, LEFT, RIGHT, UP, Browser
from support.chat_page import (
    DONE,
    SCRIPTED,
    TEXTS,
    TITLES,
    WIDTHS,
    begin,
    fits,
    open_page,
    reload_page,
    say,
    set_value,
)
from support.routed import DRAFT, Source, router
from support.serving import HANGS_S, Server, nano_server, running, wait_until

from nextn.core.speculation.options import SpecOptions

pytestmark = [pytest.mark.browser, pytest.mark.slow]

USER, ANSWER = ".message.user", ".message.assistant"
HALTS_AT = 20  # steps
SHORT = {"max_tokens": "8", "temperature": "0", "seed": "1"}


@pytest.fixture
def held() -> Iterator[tuple[Server, threading.Event]]:
    """A server whose first text halts after some steps, until the event is set."""
    may_go_on, steps = threading.Event(), count()
    with running(nano_server(n=1, ignore_eos=True)) as server:
        step = server.engine.step

        def held_step() -> Any:
            assert next(steps) < HALTS_AT or may_go_on.wait(HANGS_S)
            return step()

        server.engine.step = held_step  # type: ignore[method-assign]
        try:
            yield server, may_go_on
        finally:
            may_go_on.set()


def act(page: Browser, selector: str, name: str) -> None:
    """Presses the button of a message with this text or label."""
    page.run(
        "const all = [...document.querySelector(arguments[0]).querySelectorAll('button')];"
        "all.find((e) => [e.textContent, e.ariaLabel].includes(arguments[1])).click()",
        selector, name,
    )  # fmt: skip


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_conversation_fits_and_outlives_a_reload(
    page: Browser, server: Server, width: int, is_dark: bool
) -> None:
    page.resize(width, 700)
    page.dark(is_dark)
    begin(page, server, **SHORT)
    assert fits(page)
    say(page, "A word that is long: " + "0123456789abcdef" * 20)
    say(page, "And one more")
    assert fits(page)
    before = page.run(TEXTS)
    assert len(before) == 4
    assert all(before)
    reload_page(page, server)
    assert page.run(TEXTS) == before
    for name in ("list", "panel"):
        if page.run("return document.getElementById(arguments[0]).hidden", name):
            page.click(f"#toggle-{name}")
        assert fits(page)
        if width < 700:  # over the text: it can be left by the key
            page.press(ESCAPE)
            assert page.run("return document.getElementById(arguments[0]).hidden", name)
    back = page.run("return getComputedStyle(document.documentElement).backgroundColor")
    assert (int(back.removeprefix("rgb(").split(",")[0]) < 128) is is_dark
    box = page.run("return document.querySelector('#send').getBoundingClientRect().bottom")
    assert box <= page.run("return innerHeight")
    assert page.log() == []


def test_a_text_is_stopped_and_what_came_is_kept(
    page: Browser, held: tuple[Server, threading.Event]
) -> None:
    server, may_go_on = held
    page.resize(1280, 800)
    begin(page, server)
    page.type("#prompt", "Hello" + ENTER)
    page.wait(f"return document.querySelector('{ANSWER} .answer')?.textContent.length > 5")
    assert page.text("#send") == "Stop"
    page.type("#prompt", ESCAPE)
    page.wait(DONE)
    assert page.text("#notice") == "stopped"
    may_go_on.set()
    wait_until(lambda: not server.worker.n_open)
    assert server.n_predicted() < 3 * HALTS_AT
    written = page.run(TEXTS)
    reload_page(page, server)
    assert page.run(TEXTS) == written
    page.press("k", CONTROL)
    assert page.count(".message") == 0
    assert page.run("return document.activeElement.id") == "prompt"
    assert page.log() == []


def test_a_text_that_is_left_is_kept_so_far(
    page: Browser, held: tuple[Server, threading.Event]
) -> None:
    server, _ = held
    begin(page, server)
    page.type("#prompt", "Hello" + ENTER)
    page.wait(f"return document.querySelector('{ANSWER} .answer')?.textContent.length > 5")
    reload_page(page, server)
    said, answer = page.run(TEXTS)
    assert said == "Hello"
    assert answer


def test_messages_are_edited_and_written_again(page: Browser, server: Server) -> None:
    begin(page, server, **SHORT)
    say(page, "One")
    say(page, "Two")
    first = page.run(TEXTS)
    page.press(UP)  # at the empty prompt: the last message
    assert page.run("return document.activeElement.value") == "Two"
    page.press(ESCAPE)
    assert page.run(TEXTS) == first
    act(page, USER, "Edit")
    page.type(f"{USER} textarea", " and a half" + ENTER)
    page.wait(f"return document.querySelectorAll('{ANSWER}').length === 1")
    page.wait(DONE)
    second = page.run(TEXTS)
    assert len(second) == 2
    assert second[0] == "One and a half"
    assert "2/2" in page.text(f"{USER} .versions")
    set_value(page, "max-tokens", "3")
    act(page, ANSWER, "Regenerate")
    page.wait(f"return document.querySelector('{ANSWER} .versions')")
    page.wait(DONE)
    assert "2/2" in page.text(f"{ANSWER} .versions")
    third = page.run(TEXTS)
    assert third[1] != second[1]
    act(page, ANSWER, "Earlier version")
    assert page.run(TEXTS) == second
    act(page, USER, "Earlier version")
    assert page.run(TEXTS) == first
    reload_page(page, server)
    assert page.run(TEXTS) == first
    act(page, USER, "Later version")
    act(page, ANSWER, "Later version")
    assert page.run(TEXTS) == third
    assert page.log() == []


def test_an_answer_is_edited_without_another(page: Browser, server: Server) -> None:
    begin(page, server, **SHORT)
    say(page, "One")
    n = server.n_predicted()
    act(page, ANSWER, "Edit")
    page.type(f"{ANSWER} textarea", " **mine**")
    page.click(f"{ANSWER} [type=submit]")
    assert page.text(f"{ANSWER} strong") == "mine"
    assert server.n_predicted() == n


def test_the_model_reads_the_branch_that_is_shown(page: Browser, server: Server) -> None:
    """Bodies of requests, as the browser sent them."""
    begin(page, server, **SHORT)
    page.run(
        "const real = window.fetch; window.sent = [];"
        "window.fetch = (path, how) => { if (how?.body) sent.push(JSON.parse(how.body));"
        " return real(path, how); }"
    )
    set_value(page, "system", "Be brief.")
    say(page, "One")
    act(page, USER, "Edit")
    page.type(f"{USER} textarea", "!" + ENTER)
    page.wait("return sent.length === 2")
    page.wait(DONE)
    say(page, "Two")
    answer = page.run(TEXTS)[1]
    messages = page.run("return sent[2].messages")
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "user"]
    assert [each["content"] for each in messages[:2]] == ["Be brief.", "One!"]
    assert messages[2]["content"].strip() == answer.strip()


def test_conversations_are_found_exported_and_deleted(
    page: Browser, server: Server, tmp_path: Path
) -> None:
    page.resize(1280, 800)
    page.accept_dialogs()
    page.download_to(tmp_path)
    begin(page, server, **SHORT)
    say(page, "Of apples")
    page.click("#new")
    say(page, "Of <b>pears</b>")
    assert page.run(TITLES) == ["Of <b>pears</b>", "Of apples"]
    page.type("#search", "APPLES")
    assert page.run(TITLES) == ["Of apples"]
    page.click("#conversations .title")
    assert page.run(TEXTS)[0] == "Of apples"
    page.click("#conversations [aria-label^=Export]")
    text = (tmp_path / page.downloaded()).read_text()
    assert text.startswith("# Of apples\n\n## User\n\nOf apples\n")
    page.run("const it = document.querySelector('#search'); it.value = '';"
             "it.dispatchEvent(new Event('input'))")  # fmt: skip
    page.click("#export-all")
    kept = json.loads((tmp_path / page.downloaded()).read_text())
    assert len(kept) == 2
    page.click("#conversations [aria-label='Delete: Of apples']")
    assert page.run(TITLES) == ["Of <b>pears</b>"]
    assert page.count(".message") == 0
    reload_page(page, server)
    assert page.run(TITLES) == ["Of <b>pears</b>"]
    assert page.log() == []


def test_a_file_is_attached_and_read(page: Browser, server: Server, tmp_path: Path) -> None:
    begin(page, server, **SHORT)
    file, other = tmp_path / "notes.txt", tmp_path / "picture.png"
    file.write_text("<script>window.bad = 1</script> ```")
    other.write_bytes(b"\x89PNG\r\n\x1a\n")
    page.run("window.real = fetch; window.fetch = (path, how) => {"
             "if (how?.body) window.body = how.body; return real(path, how) }")  # fmt: skip
    page.choose_file("#file", file, other)
    page.wait("return document.querySelector('#attached .error')")
    assert "does not see images" in page.text("#attached .error")
    assert page.text("#attached button").startswith("notes.txt")
    say(page, "What is it?")
    sent = json.loads(page.run("return body"))["messages"][0]["content"]
    assert sent == f"notes.txt:\n````\n{file.read_text()}\n````\n\nWhat is it?"
    assert page.text(".file summary") == "notes.txt"
    reload_page(page, server)
    assert page.text(".file pre") == file.read_text()
    assert page.run("return window.bad ?? null") is None


def test_settings_persist_until_they_are_reset(page: Browser, server: Server) -> None:
    page.resize(1280, 800)
    open_page(page, server, temperature="0.5", system="Be brief.", tint=False, fixed=True)
    page.click("#toggle-panel")
    reload_page(page, server)
    found = "return ['temperature', 'system'].map((id) => document.getElementById(id).value)"
    assert page.run(found) == ["0.5", "Be brief."]
    assert not page.run("return document.body.classList.contains('tinted')")
    assert page.run("return document.querySelector('#panel').hidden")
    page.click("#toggle-panel")
    page.click("#reset")
    reload_page(page, server)
    assert page.run(found) == ["", ""]
    assert page.run("return document.body.classList.contains('tinted')")


def test_the_page_says_why_nothing_was_drafted(page: Browser, server: Server) -> None:
    begin(page, server, max_tokens="40", temperature="0")
    page.run("document.querySelectorAll('#drafters input').forEach((box) => box.click())")
    say(page, "import os")
    page.wait("return document.querySelector('#notice button')")
    assert "no drafter is chosen" in page.text("#notice")
    page.click("#notice button")
    page.wait(f"return document.querySelector('{ANSWER} .versions')")
    page.wait(DONE)
    assert page.run("return document.querySelector('#fixed').checked")
    assert page.count(f"{ANSWER} [data-source]") > 0
    assert page.text("#accepted").endswith("%")
    assert page.log() == []


def test_the_page_says_the_reason_that_the_server_gives(page: Browser) -> None:
    text = {"choices": [{"delta": {"content": "Yes"}, "sources": ["target"]}]}
    ended: dict[str, Any] = {
        "choices": [{"delta": {}}],
        "timings": {"draft_n": 0, "draft_n_accepted": 0},
    }
    with running(nano_server(n=1)) as server:
        server.worker.idle_drafters = {"mtp": "it <i>sleeps</i>"}
        begin(page, server)
        page.run(SCRIPTED, [text, ended])
        say(page, "Hi")
        page.wait("return document.querySelector('#notice button')")
        assert page.text("#notice").startswith("Nothing was drafted. mtp: it <i>sleeps</i>. Draft")
        assert "idle: it <i>sleeps</i>" in page.text("#drafters")
        ended["timings"] = {"draft_n": 5, "draft_n_accepted": 0}
        begin(page, server)
        page.run(SCRIPTED, [text, ended])
        say(page, "Hi")
        page.wait("return document.querySelector('#notice button')")
        assert page.text("#notice").startswith("None of 5 drafted tokens was accepted. mtp: it")


def test_the_page_says_that_there_is_no_drafter(page: Browser) -> None:
    with running(nano_server(n=1, spec=SpecOptions(types=("none",)))) as server:
        begin(page, server, **SHORT)
        say(page, "Hi")
        page.wait("return !document.querySelector('#notice').hidden")
        assert "without a drafter" in page.text("#notice")
        assert page.count("#notice button") == 0


def test_the_page_is_used_by_keys_alone(page: Browser, server: Server) -> None:
    begin(page, server, **SHORT)
    page.run("document.querySelector('#tab-chat').focus()")
    for key, tab in ((DOWN, "tab-chat"), (RIGHT, "tab-text"), (LEFT, "tab-chat")):
        page.press(key)
        assert page.run("return document.activeElement.id") == tab
    unnamed = page.run(
        "return [...document.querySelectorAll('button, input, textarea, select, nav, dialog')]"
        ".filter((e) => e.type !== 'file' && !e.ariaLabel && !e.textContent.trim())"
        ".filter((e) => !e.labels?.length).map((e) => e.outerHTML)"
    )
    assert unnamed == []


def test_a_model_is_chosen_and_stays(page: Browser) -> None:
    choose = "const it = document.querySelector('#models'); it.value = arguments[0]; it.onchange()"
    states = "return [...document.querySelectorAll('#models option')].map((each) => each.text)"
    with router(Source("a"), Source("b", DRAFT), Source("c", error="it is broken")) as server:
        begin(page, server, **SHORT)
        assert page.text("#model") == "a"
        page.run(choose, "b")
        page.wait("return document.querySelector('#model').textContent === 'b'")
        say(page, "Hi")
        assert server.loaded() == {"a", "b"}
        assert page.run("return document.querySelector('#models').value") == "b"
        reload_page(page, server)
        assert page.text("#model") == "b"
        assert page.run(states) == ["a", "b", "c (unloaded)"]
        page.run(choose, "c")
        page.wait("return document.querySelector('#model').matches('.bad')")
        assert "it is broken" in page.text("#model")
        page.run(choose, "a")
        page.wait("return document.querySelector('#model:not(.bad)')?.textContent === 'a'")
