"""A Hugging Face hub on this machine: its API paths, redirects to another port, byte ranges.

`faults` make it misbehave; `requests` is what was asked of it, and `sent` how many body bytes went
out.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

COMMIT = "5e1f" * 10
HANGS_S = 120


@dataclass
class Hold:
    """A fault: so many bytes come, the rest when it may."""

    n_bytes: int
    has_come: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)


@dataclass
class Hub:
    endpoint: str = ""
    storage: str = ""  # where files are redirected to
    files: dict[str, bytes] = field(default_factory=dict)
    repo: str = "owner/name"
    revisions: tuple[str, ...] = ("main", COMMIT)
    faults: dict[str, Any] = field(default_factory=dict)
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    at_once: int = 0
    most_at_once: int = 0

    def add_folder(self, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.files[path.relative_to(folder).as_posix()] = path.read_bytes()

    def listing(self) -> dict[str, Any]:
        siblings = []
        for name, data in self.files.items():
            entry: dict[str, Any] = {"rfilename": name, "size": len(data)}
            if len(data) > 10_000:
                digest = hashlib.sha256(data).hexdigest()
                entry["lfs"] = {"size": len(data), "sha256": digest, "pointerSize": 134}
            siblings.append(entry)
        return {"id": self.repo, "sha": COMMIT, "siblings": siblings}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub
    is_storage = False

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.hub.requests.append((self.path, dict(self.headers)))
        parts = urlsplit(self.path)
        faults = self.hub.faults
        if wait := faults.get("slow"):
            self.hub.at_once += 1
            self.hub.most_at_once = max(self.hub.most_at_once, self.hub.at_once)
            time.sleep(wait)
            self.hub.at_once -= 1
        if "status" in faults and not self._spent("status"):
            extra = faults.get("headers", {})
            return self._answer(faults["status"], b"{}", extra)
        if self.is_storage:
            return self._file(unquote(parts.path.removeprefix("/store/")))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)", parts.path):
            return self._api(found[1], unquote(found[2]))
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)", parts.path):
            return self._info(found[1])
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", parts.path):
            return self._resolve(found[1], unquote(found[2]), unquote(found[3]))
        return self._answer(404, b"")

    def _spent(self, fault: str) -> bool:
        """Faults with a number happen so often."""
        times = self.hub.faults.get(f"{fault} times")
        self.hub.counts[fault] += 1
        return times is not None and self.hub.counts[fault] > times

    def _api(self, repo: str, revision: str) -> None:
        if repo != self.hub.repo:
            return self._answer(401, b'{"error": "Invalid username or password."}')
        if revision not in self.hub.revisions:
            return self._answer(404, b"{}")
        body = self.hub.faults.get("listing", json.dumps(self.hub.listing()).encode())
        return self._answer(200, body)

    def _info(self, repo: str) -> None:
        """The newest revision; a header says what is wrong, which `huggingface_hub` goes by."""
        if "gated" in self.hub.faults:
            return self._answer(self.hub.faults["gated"], b"{}", {"X-Error-Code": "GatedRepo"})
        if repo != self.hub.repo:
            return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        return self._answer(200, json.dumps(self.hub.listing()).encode())

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        if repo != self.hub.repo or name not in self.hub.files:
            return self._answer(404, b"Entry not found")
        if "gated" in self.hub.faults and "Authorization" not in self.headers:
            return self._answer(self.hub.faults["gated"], b"gated")
        location = self.hub.faults.get("location", f"{self.hub.storage}/store/{name}")
        return self._answer(302, b"Found", {"Location": location})

    def _file(self, name: str) -> None:
        data, faults = self.hub.files[name], self.hub.faults
        if "expired" in faults and not self._spent("expired"):
            return self._answer(403, b"Request has expired")
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if not wanted or faults.get("no ranges"):
            return self._answer(200, data)
        first, last = int(wanted[1]), min(int(wanted[2]), len(data) - 1)
        if first > last:
            return self._answer(416, b"")
        body = faults.get("body", data[first : last + 1])
        total = faults.get("total", len(data))
        sent = {"Content-Range": faults.get("range", f"bytes {first}-{last}/{total}")}
        return self._answer(206, body, sent | faults.get("headers", {}))

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        cut = self.hub.faults.get("cut")
        if cut is not None and self.is_storage and len(body) > cut and not self._spent("cut"):
            body = body[:cut]
            self.close_connection = True
        if self.is_storage and (hold := self.hub.faults.get("hold")) is not None:
            self.wfile.write(body[: hold.n_bytes])
            self.wfile.flush()
            hold.has_come.set()
            assert hold.may_go_on.wait(HANGS_S)
            body = body[hold.n_bytes :]
        self.wfile.write(body)
        self.hub.sent += len(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are part of the play."""


@contextmanager
def serve_hub() -> Iterator[Hub]:
    hub = Hub()
    servers = []
    for is_storage in (False, True):
        kind = type("Handler", (_Handler,), {"hub": hub, "is_storage": is_storage})
        server = _Server(("127.0.0.1", 0), kind)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
    hub.endpoint, hub.storage = (f"http://127.0.0.1:{s.server_address[1]}" for s in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


@contextmanager
def hub_alone(folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with the files of `folder`, the only one there is; what is kept is below `place`."""
    with serve_hub() as made:
        made.add_folder(folder)
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        monkeypatch.setenv("HF_HOME", str(place))
        monkeypatch.setenv("SPEC_CACHE_DIR", str(place / "cache"))
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "LLAMA_CACHE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place / "hub"))
        monkeypatch.setattr(constants, "ENDPOINT", made.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(place / "token"))
        yield made
