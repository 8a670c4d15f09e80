"""A page in headless Chromium: opened, looked at, typed into and clicked."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .devtools import DevTools, DevToolsError

# Keys that are no text, by a letter of Unicode's private area: WebDriver's.
ENTER, ESCAPE = "\ue007", "\ue00c"
LEFT, UP, RIGHT, DOWN = "\ue012", "\ue013", "\ue014", "\ue015"
_KEYS = {
    ENTER: ("Enter", 13, "\r"),
    ESCAPE: ("Escape", 27, ""),
    LEFT: ("ArrowLeft", 37, ""),
    UP: ("ArrowUp", 38, ""),
    RIGHT: ("ArrowRight", 39, ""),
    DOWN: ("ArrowDown", 40, ""),
}
CONTROL, SHIFT = 2, 8  # modifiers, as the protocol counts them
_PAUSE_S = 0.02  # between two looks at a condition
# In the middle of what can be seen of it, if a click there reaches it.
_PLACE = """
const element = document.querySelector(SELECTOR);
if (!element) return 'is not there';
element.scrollIntoView({ block: 'center', inline: 'center' });
const { x, y, width, height } = element.getBoundingClientRect();
if (!width || !height) return 'is not shown';
const at = { x: x + width / 2, y: y + height / 2 };
const top = document.elementFromPoint(at.x, at.y);
if (!element.contains(top)) return `is covered by ${top?.outerHTML.slice(0, 120)}`;
return at;
"""


class Browser:
    def __init__(self, devtools: DevTools) -> None:
        self.devtools = devtools
        context = devtools.call("Target.createBrowserContext")["browserContextId"]
        made = devtools.call(
            "Target.createTarget", url="about:blank", browserContextId=context,
            width=1280, height=800,
        )  # fmt: skip
        self._context = context
        self._session = devtools.call(
            "Target.attachToTarget", targetId=made["targetId"], flatten=True
        )["sessionId"]
        for name in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{name}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)
        self.resize(1280, 800)

    def call(self, method: str, **params: Any) -> Any:
        return self.devtools.call(method, self._session, **params)

    def open(self, url: str) -> None:
        """Waits until the page has been loaded, whatever its status."""
        made = self.call("Page.navigate", url=url)
        if "errorText" in made:
            raise DevToolsError(f"{url}: {made['errorText']}")
        loader = made["loaderId"]
        self.devtools.event(
            "Page.lifecycleEvent", lambda e: e["loaderId"] == loader and e["name"] == "load"
        )

    def run(self, script: str, *arguments: Any) -> Any:
        """What the body of a function returns, or its promise becomes; an element as HTML."""
        given = json.dumps(arguments)
        found = self.call(
            "Runtime.evaluate",
            expression=f"Promise.resolve((function () {{ {script} }})(...{given}))"
            ".then((found) => (found instanceof Element ? found.outerHTML : found))",
            awaitPromise=True, returnByValue=True, userGesture=True,
        )  # fmt: skip
        if failure := found.get("exceptionDetails"):
            told = failure.get("exception", {}).get("description") or failure["text"]
            raise DevToolsError(f"{told}, in: {script[:200]}")
        return found["result"].get("value")

    def wait(self, script: str, *arguments: Any) -> Any:
        """The first result of `script` that is true."""

        def look() -> Any:
            try:
                return self.run(script, *arguments)
            except DevToolsError as error:
                if "context" not in str(error):  # else the page is just being replaced
                    raise
                return None

        return self.devtools.wait(look, script, _PAUSE_S)

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def count(self, selector: str) -> int:
        return int(self.run("return document.querySelectorAll(arguments[0]).length", selector))

    def click(self, selector: str) -> None:
        place = self.run(_PLACE.replace("SELECTOR", json.dumps(selector)))
        assert isinstance(place, dict), f"{selector} {place}"
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def type(self, selector: str, text: str) -> None:
        """Behind what stands there."""
        focus = "const it = document.querySelector(arguments[0]); it.focus();"
        focus += "it.setSelectionRange && it.type !== 'number' && it.setSelectionRange(1e9, 1e9);"
        self.run(focus, selector)
        written = ""
        for letter in text:
            if letter not in _KEYS:
                written += letter
                continue
            self._insert(written)
            written = ""
            self.press(letter)
        self._insert(written)

    def _insert(self, text: str) -> None:
        if text:
            self.call("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        """One key, at what has the focus."""
        name, code, text = _KEYS.get(key, (key, ord(key.upper()), ""))
        shared = {"key": name, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        shared["code"] = name if key in _KEYS else f"Key{key.upper()}"
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.call("Input.dispatchKeyEvent", **down, **shared)
        self.call("Input.dispatchKeyEvent", type="keyUp", **shared)

    def choose_file(self, selector: str, *paths: Path) -> None:
        """As its user would in the dialog of an `<input type=file>`."""
        found = self.call(
            "Runtime.evaluate", expression=f"document.querySelector({json.dumps(selector)})"
        )
        names = [str(path) for path in paths]
        self.call("DOM.setFileInputFiles", files=names, objectId=found["result"]["objectId"])

    def download_to(self, folder: Path) -> None:
        self.devtools.call(
            "Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder),
            eventsEnabled=True, browserContextId=self._context,
        )  # fmt: skip

    def downloaded(self) -> str:
        """The name of the next file that has come whole."""
        begun = self.devtools.event("Browser.downloadWillBegin")
        self.devtools.event(
            "Browser.downloadProgress",
            lambda e: e["guid"] == begun["guid"] and e["state"] == "completed",
        )
        return str(begun["suggestedFilename"])

    def permit(self, *names: str) -> None:
        self.devtools.call(
            "Browser.grantPermissions", permissions=names, browserContextId=self._context
        )

    def accept_dialogs(self) -> None:
        """`confirm` and `alert` are answered yes by the page itself from now on."""
        self.call("Page.addScriptToEvaluateOnNewDocument", source="window.confirm = () => true;")

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    def dark(self, is_dark: bool) -> None:
        """What the page is told that its user prefers."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot")["data"]))

    def log(self) -> list[str]:
        """What the page complained of: errors, warnings, refused resources. Said once."""
        self.run("return 0")  # what came before is read with its answer
        events, found = self.devtools.events, []
        for event in list(events):
            if (told := _complaint(event)) and event.get("sessionId") == self._session:
                found.append(told)
                events.remove(event)
        return found


def _complaint(event: dict[str, Any]) -> str:
    method, params = event["method"], event["params"]
    if method == "Log.entryAdded" and params["entry"]["level"] in ("warning", "error"):
        return f"{params['entry']['text']} {params['entry'].get('url', '')}"
    if method == "Runtime.exceptionThrown":
        details = params["exceptionDetails"]
        return str(details.get("exception", {}).get("description") or details["text"])
    if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
        return " ".join(str(each.get("value")) for each in params["args"])
    return ""


@contextmanager
def browser(*flags: str) -> Iterator[Browser]:
    devtools = DevTools(*flags)
    try:
        yield Browser(devtools)
    finally:
        devtools.close()
