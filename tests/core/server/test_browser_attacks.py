"""Web pages of other sites in a real browser, each trying to make a server of this machine act.

What a browser sends by itself counts here; test_cross_site.py plays more of it over sockets.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest
from support.browser import Browser, browser
from support.serving import Server, nano_server, running, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# Every name of `.example` is this machine, as after DNS rebinding; pages may use plain HTTP.
FLAGS = ("--host-resolver-rules=MAP *.example 127.0.0.1", "--disable-features=HttpsUpgrades")
CHAT = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2})
TEXT = json.dumps({"prompt": "a = ", "n_predict": 2, "max_tokens": 2})
KEPT = {"prompt": "b = 1\n", "n_predict": 4}  # what slot 0 holds

# A form's body is `name=value`: with `text/plain` that is JSON, if the `=` is in a string.
TOOLS = """
const [T, TEXT, CHAT] = arguments;
const add = (tag, fields) =>
  document.body.appendChild(Object.assign(document.createElement(tag), fields));
const post = (path, fields) =>
  fetch(path.startsWith('/') ? T + path : path, { method: 'POST', body: TEXT, ...fields })
    .catch(() => 0);
const submit = (action, json, target) => {
  const form = add('form', { action, method: 'POST', enctype: 'text/plain', target });
  const name = json.replace(/}$/, json === '{}' ? '"x": "' : ', "x": "');
  form.append(Object.assign(document.createElement('input'), { name, value: '"}' }));
  form.submit();
};
const frame = () => add('iframe', { name: 'inside' }).name;
const there = (path) => `/redirect?to=${encodeURIComponent(T + path)}`;
"""
ATTACKS = {
    "fetch without CORS": "post('/completion', { mode: 'no-cors' })",
    "fetch of a chat": "post('/v1/chat/completions', { body: CHAT })",
    "fetch with credentials": "post('/v1/completions', { credentials: 'include' })",
    "fetch that outlives its page": "post('/completion', { mode: 'no-cors', keepalive: true })",
    "fetch that is sent on": "post(there('/completion'), { mode: 'no-cors' })",
    "fetch in a worker": """new Worker(URL.createObjectURL(new Blob([
        `fetch('${T}/completion', { method: 'POST', mode: 'no-cors', body: '${TEXT}' })`])))""",
    "XMLHttpRequest": """const x = new XMLHttpRequest();
        x.open('POST', T + '/completion'); x.send(TEXT)""",
    "beacon": "navigator.sendBeacon(T + '/v1/completions', TEXT)",
    "ping of a link": """
        add('a', { href: '/', target: frame(), ping: T + '/completion' }).click()""",
    "form in a frame": "submit(T + '/completion', TEXT, frame())",
    "form in a window": "submit(T + '/v1/chat/completions', CHAT, '_blank')",
    "form that is sent on": "submit(there('/completion'), TEXT, frame())",
    "form that saves a slot": "submit(T + '/slots/0?action=save', '{\"filename\": \"evil\"}', '')",
    "form that erases a slot": "submit(T + '/slots/0?action=erase', '{}', frame())",
    "frame": "add('iframe', { src: T + '/props' })",
    "frame without an origin": """add('iframe', { sandbox: 'allow-scripts', srcdoc:
        `<script>fetch('${T}/completion', { method: 'POST', mode: 'no-cors', body: '${TEXT}' })
        </scr` + 'ipt>' })""",
    "image": "add('img', { src: T + '/slots' })",
    "script": "add('script', { src: T + '/v1/models' })",
    "module": "import(T + '/v1/models').catch(() => 0)",
    "style sheet": "add('link', { rel: 'stylesheet', href: T + '/props' })",
    "font": "new FontFace('f', `url(${T}/props)`).load().catch(() => 0)",
    "video": "add('video', { src: T + '/metrics' }).load()",
    "object": "add('object', { data: T + '/slots' })",
    "prefetch": "add('link', { rel: 'prefetch', href: T + '/slots' })",
    "preload": "add('link', { rel: 'preload', as: 'image', href: T + '/slots' })",
    "events of the server": "new EventSource(T + '/v1/models')",
    "websocket": "new WebSocket(T.replace('http', 'ws') + '/completion')",
    "navigation": "location.href = T + '/slots'",
    "window": "window.open(T + '/metrics')",
}  # fmt: skip
# What a browser asks about first: the answer permits nothing, and it sends no more.
ASKED_FIRST = {
    "JSON": "post('/completion', { headers: { 'Content-Type': 'application/json' } })",
    "DELETE": "post('/v1/models/x', { method: 'DELETE', body: undefined })",
    "a header of its own": "post('/slots/0?action=erase', { headers: { 'X-Mine': '1' } })",
}


class Attacker(BaseHTTPRequestHandler):
    """An empty page; `/redirect?to=URL` sends on with method and body."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = urlsplit(self.path)
        self.send_response(307 if asked.path == "/redirect" else 200)
        if asked.path == "/redirect":
            self.send_header("Location", parse_qs(asked.query)["to"][0])
        body = b"<!doctype html><title>another site</title><body></body>"
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Site(NamedTuple):
    page: Browser
    port: int  # of the attacker
    server: Server
    slots: Path

    def attack(self, script: str, origin: str = "evil.example") -> None:
        self.page.open(f"http://{origin}:{self.port}/")
        self.page.run(f"{TOOLS} {script}; return 0", self.server.url, TEXT, CHAT)

    def done(self) -> list[Any]:
        """What requests that are carried out leave behind."""
        totals = self.server.worker.totals
        counts = totals.prompt_n, totals.cached_n, totals.predicted_n, totals.steps, totals.ended
        return [repr(counts), sorted(path.name for path in self.slots.iterdir())]

    def n_refused(self) -> int:
        return self.server.serving.service.statuses[403]

    def n_kept(self) -> int:
        """Tokens in slot 0."""
        found = self.server.post("/slots/0?action=save", filename="kept")
        (self.slots / "kept").unlink()
        return int(found["n_saved"])


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with browser(*FLAGS) as found:
        yield found


@contextmanager
def attacker() -> Iterator[int]:
    http = ThreadingHTTPServer(("127.0.0.1", 0), Attacker)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield http.server_address[1]
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


@pytest.fixture(scope="module")
def site(page: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    slots = tmp_path_factory.mktemp("slots")
    with attacker() as port, running(nano_server(n=1, slot_folder=slots)) as server:
        server.post("/completion", **KEPT)
        yield Site(page, port, server, slots)


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_done_for_another_site(site: Site, name: str) -> None:
    kept, before, refused = site.n_kept(), site.done(), site.n_refused()
    site.attack(ATTACKS[name])
    wait_until(lambda: site.n_refused() > refused)
    assert site.done() == before
    assert site.n_kept() == kept > 0


@pytest.mark.parametrize("name", ASKED_FIRST)
def test_what_a_browser_asks_about_is_not_permitted(site: Site, name: str) -> None:
    kept, before = site.n_kept(), site.done()
    statuses = site.server.serving.service.statuses
    n_before = statuses.total()
    site.attack(f"return {ASKED_FIRST[name]}.then((answer) => answer)")  # until it has failed
    wait_until(lambda: statuses.total() > n_before)
    assert site.done() == before
    assert site.n_kept() == kept > 0


@pytest.mark.parametrize("port_of", ["server", "attacker"])
def test_a_rebound_name_reaches_nothing(site: Site, port_of: str) -> None:
    """The name of the page is now this machine's address: for the browser it is the same site."""
    port = site.server.port if port_of == "server" else site.port
    before, refused = site.done(), site.n_refused()
    site.page.open(f"http://rebound.example:{port}/")
    there = f"http://rebound.example:{site.server.port}"
    script = f"{TOOLS} return post('/completion').then((answer) => answer.status ?? 0)"
    status = site.page.run(script, there, TEXT, CHAT)
    assert status == (403 if port_of == "server" else 0)
    wait_until(lambda: site.n_refused() > refused)
    assert site.done() == before


def test_the_page_shows_in_no_frame(site: Site) -> None:
    page = site.page
    page.log()
    site.attack("add('iframe', { src: T + '/' })")

    def was_refused() -> bool:
        return any("frame-ancestors" in line for line in page.log())

    page.devtools.wait(was_refused, "a refused frame", 0.05)


@pytest.mark.parametrize("name", ["fetch without CORS", "beacon", "form in a frame"])
def test_a_page_of_this_machine_may(site: Site, name: str) -> None:
    """The same attempts, so that those above are known to be able to succeed."""
    before = site.server.worker.totals.predicted_n
    site.attack(ATTACKS[name], origin="localhost")
    wait_until(lambda: site.server.worker.totals.predicted_n > before)
