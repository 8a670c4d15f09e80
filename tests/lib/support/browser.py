"""A headless Chromium, driven by the WebDriver protocol itself: no client library is needed."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's key of an element's id
ENTER, SHIFT, ESCAPE = "\ue007", "\ue008", "\ue00c"
OPTIONS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def is_installed() -> bool:
    return bool(shutil.which("chromedriver") and shutil.which("chromium"))


class Browser:
    def __init__(self, port: int) -> None:
        self._port = port
        options = {"args": OPTIONS, "binary": shutil.which("chromium")}
        wanted = {"alwaysMatch": {"goog:chromeOptions": options}}
        made = self._call("POST", "/session", {"capabilities": wanted})
        self._session = f"/session/{made['sessionId']}"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{answer['error']}: {answer['message'][:300]}")
        return answer

    def _do(self, method: str, path: str, body: Any = None) -> Any:
        return self._call(method, self._session + path, body)

    def open(self, url: str) -> None:
        self._do("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        return self._do("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        found = self._do("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])

    def click(self, selector: str) -> None:
        self._do("POST", f"/element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self._do("POST", f"/element/{self.find(selector)}/value", {"text": text})

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def resize(self, width: int, height: int) -> None:
        self._do("POST", "/window/rect", {"width": width, "height": height})

    def dark(self, is_dark: bool) -> None:
        """What the page is told that its user prefers."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        body = {"cmd": "Emulation.setEmulatedMedia", "params": {"features": scheme}}
        self._do("POST", "/goog/cdp/execute", body)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._do("GET", "/screenshot")))

    def log(self) -> list[dict[str, Any]]:
        """What the page complained of: errors, refused resources."""
        found: list[dict[str, Any]] = self._do("POST", "/se/log", {"type": "browser"})
        return found

    def wait(self, script: str, *arguments: Any, seconds: float = 20.0) -> Any:
        """The first result of `script` that is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := self.run(script, *arguments):
                return found
            time.sleep(0.05)
        raise AssertionError(f"never became true: {script}")

    def close(self) -> None:
        self._do("DELETE", "")


@contextmanager
def browser() -> Iterator[Browser]:
    driver = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        found = Browser(_port_of(driver))
        try:
            yield found
        finally:
            found.close()
    finally:
        driver.terminate()
        driver.wait(10)


def _port_of(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    for line in driver.stdout:
        if port := re.search(r"successfully on port (\d+)", line):
            return int(port[1])
    raise RuntimeError("chromedriver did not start")
