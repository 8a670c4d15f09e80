"""A scripted server on a thread: llama.cpp's, vLLM's or OpenAI's ways, and their faults.

Every text is the same script of rounds, (drafted, accepted) each; the server counts as real ones
do, so that what a client makes of its streams can be compared with what it did.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

LLAMA, VLLM, OPENAI = "llamacpp", "vllm", "openai"
ROUNDS = ((3, 3), (3, 1), (0, 0), (2, 0), (3, 3), (3, 2), (1, 1))
PROMPT_N = 7
Round = tuple[int, int]


@dataclass
class Script:
    """What it does, and what it has done."""

    kind: str = LLAMA
    rounds: Sequence[Round] = ROUNDS
    key: str = ""
    models: Sequence[str] = ("tiny",)
    metrics: bool = True
    loading: int = 0  # answers of 503 before it is ready
    fault: str = ""  # error, break, silence, garbage, empty, all-at-once
    faulty_from: int = 0  # requests before the fault are served
    lie: int = 0  # for each text, added to what its counters say was drafted
    pause: float = 0.0  # seconds between rounds
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    texts: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    counts: dict[str, int] = field(default_factory=dict)
    per_pos: dict[int, int] = field(default_factory=dict)
    running: int = 0
    most_running: int = 0

    def add(self, **counts: int) -> None:
        with self.lock:
            for name, n in counts.items():
                self.counts[name] = self.counts.get(name, 0) + n

    def enter(self, by: int) -> None:
        with self.lock:
            self.running += by
            self.most_running = max(self.most_running, self.running)


class FakeServer:
    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        handler = type("Handler", (_Handler,), {"script": self.script})
        self._server = _Quiet(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        """Clients may go."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    script: Script

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""

    def do_GET(self) -> None:
        script = self.script
        if script.loading and self.path == "/health":
            script.loading -= 1
            self._json(503, {"error": {"code": 503, "message": "Loading model"}})
        elif self.path == "/health":
            self._json(*((404, {}) if script.kind == OPENAI else (200, {"status": "ok"})))
        elif self._is_refused():
            return
        elif self.path == "/v1/models":
            owner = script.kind if script.kind != OPENAI else "someone"
            self._json(200, {"data": [{"id": name, "owned_by": owner} for name in script.models]})
        elif self.path == "/props" and script.kind == LLAMA:
            self._json(200, {"total_slots": 2, "build_info": "b1-fake", "model_path": "m.gguf",
                             "chat_template": "x"})  # fmt: skip
        elif self.path == "/metrics" and script.metrics and script.kind != OPENAI:
            self._send(200, "text/plain", self._metrics().encode())
        else:
            self._json(404, {"error": {"message": "File Not Found"}})

    def do_POST(self) -> None:
        script = self.script
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._is_refused():
            return
        script.headers.append(dict(self.headers))
        if self.path == "/apply-template":
            said = "".join(f"<{m['role']}>{m['content']}" for m in body["messages"])
            self._json(200, {"prompt": said})
            return
        routes = {
            LLAMA: ("/completion", "/v1/completions", "/v1/chat/completions"),
            VLLM: ("/v1/completions", "/v1/chat/completions"),
            OPENAI: ("/v1/chat/completions",),
        }
        if self.path not in routes[script.kind]:
            self._json(404, {"error": {"message": "File Not Found"}})
        elif script.kind == OPENAI and (unknown := _unknown(body)):
            self._json(400, {"error": {"message": f"Unrecognized request argument: {unknown}"}})
        else:
            self._stream(body)

    def _is_refused(self) -> bool:
        if not self.script.key or self.headers["Authorization"] == f"Bearer {self.script.key}":
            return False
        self._json(401, {"error": {"message": "Invalid API Key", "code": 401}})
        return True

    def _stream(self, body: dict[str, Any]) -> None:
        script = self.script
        script.requests.append(body)
        is_native = self.path == "/completion"
        n: int = body["n_predict" if is_native else _limit(body)]
        trial = n == 1
        faulty = script.fault if not trial and script.texts >= script.faulty_from else ""
        script.texts += not trial
        if faulty == "refuse":
            self._json(500, {"error": {"message": "out of cheese"}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        script.enter(1)
        self._is_writing = True
        try:
            self._events(body, is_native, n, faulty)
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._is_writing:
            self._is_writing = False
            self.script.enter(-1)

    def _events(self, body: dict[str, Any], is_native: bool, n: int, faulty: str) -> None:
        events = list(self._text(body, is_native, n))
        if faulty == "empty":
            events = []
        if faulty == "all-at-once":
            self._chunk("".join(f"data: {json.dumps(event)}\n\n" for _, event in events))
            events = []
        for i, (pause, event) in enumerate(events):
            if i == 3 and faulty == "break":
                self.close_connection = True
                self.connection.close()
                return
            if i == 3 and faulty == "silence":
                time.sleep(1.0)
            if i == 3 and faulty in ("error", "garbage"):
                said = '{"error":{"message":"engine died"}}' if faulty == "error" else "{nonsense"
                self._chunk(f"data: {said}\n\n")
                break
            if pause:
                time.sleep(self.script.pause)
            if i == len(events) - 1:
                self._leave()  # before the client can know of it, and send the next
            self._chunk(f": keep-alive\n\ndata: {json.dumps(event)}\n\n")
        if not is_native:
            self._chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def _text(
        self, body: dict[str, Any], is_native: bool, n: int
    ) -> Iterator[tuple[bool, dict[str, Any]]]:
        """(first of a round?, event)"""
        timed = self.script.kind == LLAMA and bool(body.get("timings_per_token"))
        written = Written()
        last: dict[str, Any] = {}
        for is_first in self._tokens(written, n):
            token = 100 + written.n
            stamp = {"timings": written.timings()} if timed else {}
            if is_native:
                last = {"content": f"t{token} ", "tokens": [token], "stop": False}
            else:
                ids = {"token_ids": [token]} if body.get("return_token_ids") else {}
                piece: dict[str, Any] = {"delta": {"content": f"t{token} "}}
                if self.path == "/v1/completions":
                    piece = {"text": f"t{token} "}
                last = {"choices": [{"index": 0, "finish_reason": None, **piece, **ids}]}
            yield is_first, last | stamp
        self._count(written)
        yield False, self._ending(is_native, written)

    def _tokens(self, written: Written, n: int) -> Iterator[bool]:
        written.n = 1
        yield True
        rounds = iter(self.script.rounds)
        while written.n < n:
            drafted, accepted = next(rounds, (0, 0))
            drafted = min(drafted, n - written.n - 1)
            accepted = min(accepted, drafted)
            written.rounds.append((drafted, accepted))
            for i in range(accepted + 1):
                written.n += 1
                yield i == 0

    def _ending(self, is_native: bool, written: Written) -> dict[str, Any]:
        timings = {"timings": written.timings()} if self.script.kind == LLAMA else {}
        if is_native:
            return {"content": "", "tokens": [], "stop": True, "stop_type": "limit", **timings}
        usage = {"prompt_tokens": PROMPT_N, "completion_tokens": written.n}
        choice = {"index": 0, "finish_reason": "length", "delta": {}, "text": ""}
        return {"choices": [choice], "usage": usage, **timings}

    def _count(self, written: Written) -> None:
        drafts = [each for each in written.rounds if each[0]]
        self.script.add(
            predicted=written.n, prompt=PROMPT_N, drafts=len(drafts),
            drafted=sum(n for n, _ in drafts), accepted=sum(k for _, k in drafts),
        )  # fmt: skip
        with self.script.lock:
            for _, accepted in drafts:
                for place in range(accepted):
                    self.script.per_pos[place] = self.script.per_pos.get(place, 0) + 1

    def _metrics(self) -> str:
        script = self.script
        prefix = "llamacpp:" if script.kind == LLAMA else "vllm:"
        label = "" if script.kind == LLAMA else '{engine="0",model_name="tiny"}'
        names = {"predicted": "tokens_predicted" if script.kind == LLAMA else "generation_tokens",
                 "prompt": "prompt_tokens", "drafts": "spec_decode_num_drafts",
                 "drafted": "spec_decode_num_draft_tokens",
                 "accepted": "spec_decode_num_accepted_tokens"}  # fmt: skip
        counts = {
            **script.counts,
            "drafted": script.counts.get("drafted", 0) + script.lie * script.texts,
        }
        lines = [f"{prefix}{name}_total{label} {counts.get(key, 0)}" for key, name in names.items()]
        family = f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"
        extra = "" if script.kind == LLAMA else ',engine="0",model_name="tiny"'
        lines += [f'{family}{{position="{i}"{extra}}} {n}' for i, n in script.per_pos.items()]
        busy = "requests_processing" if script.kind == LLAMA else "num_requests_running"
        return "\n".join(
            [f"# HELP {family} x", *lines, f"{prefix}{busy}{label} {script.running}", ""]
        )

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


@dataclass
class Written:
    """One text so far."""

    n: int = 0
    rounds: list[Round] = field(default_factory=list)

    def timings(self) -> dict[str, float]:
        drafted = sum(n for n, _ in self.rounds)
        drafts = {"draft_n": drafted, "draft_n_accepted": sum(k for _, k in self.rounds)}
        return {
            "prompt_n": PROMPT_N,
            "prompt_ms": 5.0,
            "predicted_n": self.n,
            "predicted_ms": 2.5 * len(self.rounds),
            **(drafts if drafted else {}),
        }


def _limit(body: dict[str, Any]) -> str:
    return "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"


def _unknown(body: dict[str, Any]) -> str:
    known = {"model", "messages", "max_completion_tokens", "stream", "stream_options",
             "temperature", "seed"}  # fmt: skip
    return next((name for name in body if name not in known), "")
