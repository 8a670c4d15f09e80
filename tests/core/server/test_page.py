"""The page in a real browser, asking a real server."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path

import pytest
from support.browser import ENTER, Browser
from support.chat_page import DONE, open_page
from support.serving import Server, nano_server, running
from support.towers import build_vision_model, picture

from nextn.core.load_runtime import load_runtime
from nextn.core.server.loading import prepare
from nextn.core.server.page import FOLDER, NAMES
from nextn.core.tokenizer import load_chat_template
from nextn.core.worker.worker import Loaded


def test_every_file_of_the_page_is_served(server: Server) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(NAMES)
    for name in NAMES:
        status, text, response = server.request("GET", f"/ui/{name}")
        assert status == 200
        assert text == (FOLDER / name).read_text()
        assert "default-src 'none'" in (response.getheader("content-security-policy") or "")
        assert "://" not in text.replace("http://www.w3.org", ""), "no other host"
    assert server.request("GET", "/ui/../app.py")[0] == 404


def test_a_server_without_a_page() -> None:
    with running(nano_server(with_page=False)) as server:
        assert server.request("GET", "/")[0] == 404


@pytest.mark.slow
@pytest.mark.browser
def test_a_text_is_written_tinted_and_checked(page: Browser, eager: Server) -> None:
    open_page(page, eager)
    page.type("#max-tokens", "120")
    page.type("#temperature", "0")
    page.type("#prompt", "def fibonacci(n):" + ENTER)
    page.wait("return document.querySelectorAll('#paper span[data-source]').length > 3")
    page.wait(DONE)
    assert page.text("#paper .facts").startswith("120 tokens")
    assert "mtp" in page.text("#legend")
    assert page.run("return getComputedStyle(document.querySelector('[data-source]'))"
                    ".backgroundColor") != "rgba(0, 0, 0, 0)"  # fmt: skip
    hidden = "return getComputedStyle(document.querySelector('.rejected')).display"
    assert page.run(hidden) == "none"
    page.click("#rejected")
    assert page.run(hidden) == "inline"
    page.click("#verify")
    page.wait("return document.querySelector('#verdict').textContent.startsWith('Identical')")
    assert page.log() == []


DROP = """
const bytes = Uint8Array.from(atob(arguments[0]), (c) => c.charCodeAt(0));
const dataTransfer = new DataTransfer();
dataTransfer.items.add(new File([bytes], "a.png", { type: "image/png" }));
const how = { bubbles: true, cancelable: true, dataTransfer };
document.body.dispatchEvent(new DragEvent("drop", how));
"""


@pytest.mark.slow
@pytest.mark.browser
def test_an_image_is_dropped_shown_and_sent(page: Browser, tmp_path: Path) -> None:
    found, out = build_vision_model("qwen3vl", tmp_path), BytesIO()
    picture(90, 60).save(out, "PNG")

    def load() -> Loaded:
        runtime = load_runtime(found.text, "cpu", n_ctx=512, mmproj=found.mmproj)
        return prepare(runtime, 2, load_chat_template(runtime.file.metadata))

    with running(Server(load)) as server:
        page.resize(1200, 800)
        open_page(page, server)
        page.click("#tab-chat")
        page.type("#max-tokens", "4")
        script = DROP.replace("arguments[0]", repr(base64.b64encode(out.getvalue()).decode()))
        page.run(script)
        page.wait("return document.querySelectorAll('#attached img').length === 1")
        page.resize(390, 800)
        assert page.run("return document.documentElement.scrollWidth <= innerWidth")
        page.resize(1200, 800)
        page.type("#prompt", "what is it" + ENTER)
        page.wait("return document.querySelector('.message.assistant .facts')")
        page.wait(DONE)
        assert page.run("return document.querySelectorAll('.message.user img').length") == 1
        assert page.run("return document.querySelectorAll('.error, #attached img').length") == 0
        assert page.log() == []


@pytest.mark.slow
@pytest.mark.browser
def test_speculation_can_be_switched_off(page: Browser, eager: Server) -> None:
    open_page(page, eager)
    page.click("#speculate")
    page.type("#max-tokens", "40")
    page.type("#prompt", "import os" + ENTER)
    page.wait("return document.querySelector('#paper .facts')")
    page.wait(DONE)
    assert page.run("return document.querySelectorAll('#paper span[data-source]').length") == 0


@pytest.mark.slow
@pytest.mark.browser
def test_a_key_is_asked_for(page: Browser, tmp_path: Path) -> None:
    with running(nano_server(api_keys=("secret",))) as server:
        page.open(f"{server.url}/")
        page.wait("return document.querySelector('#key-dialog').open")
        page.type("#key", "wrong" + ENTER)
        page.wait("return document.querySelector('#key-dialog').open")
        page.type("#key", "secret" + ENTER)
        page.wait("return document.querySelectorAll('#drafters input').length > 0")
        assert not page.run("return document.querySelector('#key-dialog').open")
