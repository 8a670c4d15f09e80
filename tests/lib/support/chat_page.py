"""The server's page in a browser: opened without a past, written to, waited for."""

from __future__ import annotations

from support.browser import ENTER, Browser
from support.serving import Client

WIDTHS = (360, 800, 1280)
DONE = "return !document.body.classList.contains('writing')"
TEXTS = "return [...document.querySelectorAll('.message .answer')].map((each) => each.innerText)"
TITLES = "return [...document.querySelectorAll('#conversations .title')].map((e) => e.textContent)"
# Streams what a server would: `events` in place of an answer.
SCRIPTED = """
const events = arguments[0].map((each) => `data: ${JSON.stringify(each)}\\n\\n`).join('');
const real = window.fetch;
window.fetch = (path, how) =>
  how?.body ? Promise.resolve(new Response(events + 'data: [DONE]\\n\\n')) : real(path, how);
"""
# What reaches beyond the window, but for what scrolls in a box of its own.
TOO_WIDE = """
const inBox = (node) => {
  for (let at = node.parentElement; at; at = at.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(at).overflowX)) return true;
  return false;
};
return [...document.body.querySelectorAll('*')]
  .filter((node) => node.getBoundingClientRect().right > innerWidth + 1)
  .filter((node) => !inBox(node)).map((node) => node.outerHTML.slice(0, 99))
"""


def open_page(page: Browser, server: Client, **settings: str | bool) -> None:
    """As for someone who was never here."""
    page.log()  # what earlier tests left
    page.open(f"{server.url}/")
    page.run("localStorage.clear(); sessionStorage.clear()")
    reload_page(page, server)
    for name, value in settings.items():
        set_value(page, name, value)


def begin(page: Browser, server: Client, **settings: str | bool) -> None:
    open_page(page, server, **settings)
    page.click("#tab-chat")


def reload_page(page: Browser, server: Client) -> None:
    page.open(f"{server.url}/")
    page.wait("return document.querySelector('#model').textContent !== 'connecting…'")


def set_value(page: Browser, name: str, value: str | bool) -> None:
    """Of a field of the settings, which need not be in sight."""
    page.run(
        "const field = document.getElementById(arguments[0]);"
        "field[field.type === 'checkbox' ? 'checked' : 'value'] = arguments[1];"
        "field.dispatchEvent(new Event('change'))",
        name.replace("_", "-"), value,
    )  # fmt: skip


def say(page: Browser, text: str) -> None:
    """Waits for the answer."""
    n = page.count(".message.assistant")
    page.type("#prompt", text + ENTER)
    page.wait("return document.querySelectorAll('.message.assistant').length > arguments[0]", n)
    page.wait(DONE)


def fits(page: Browser) -> bool:
    wide = page.run(TOO_WIDE)
    assert not wide, wide
    return bool(page.run("return document.documentElement.scrollWidth <= innerWidth"))
