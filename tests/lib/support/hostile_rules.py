"""Grammars and schemas that a server must refuse or limit, and a client that reads a stream."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

from .serving import Server, wait_until

NESTED: Any = "x"
for _ in range(90):
    NESTED = {"type": "array", "items": NESTED if isinstance(NESTED, dict) else {}}
CYCLE = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
DEEP_CYCLE = {
    "$ref": "#/$defs/a",
    "$defs": {"a": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/a"}}},
}
RULES: dict[str, dict[str, Any]] = {
    "parentheses": {"grammar": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000},
    "left recursion": {"grammar": 'root ::= root "a" | "b"'},
    "repetition": {"grammar": 'root ::= "a"{1,1000000000}'},
    "nested repetition": {"grammar": 'root ::= (((("a"{1,99}){1,99}){1,99}){1,99}){1,99}'},
    "rules": {"grammar": "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(3000))},
    "megabyte": {"grammar": 'root ::= "' + "a" * (1 << 20) + '"'},
    "megabyte schema": {"json_schema": {"enum": ["x" * 100 + str(i) for i in range(10_000)]}},
    "nested schema": {"json_schema": NESTED},
    "cycle": {"json_schema": CYCLE},
    "endless": {"json_schema": DEEP_CYCLE},
    "regex": {"json_schema": {"type": "string", "pattern": "^(a|a|b)*(((a+)+)+)+c{1,5000}$"}},
    "look-around": {"json_schema": {"type": "string", "pattern": "(?=a)b(?!c)\\1"}},
    "numbers": {"json_schema": {"type": "integer", "minimum": 1, "maximum": 10**300}},
    "items": {"json_schema": {"type": "array", "minItems": 10**9}},
    "remote": {"json_schema": {"$ref": "http://127.0.0.1:9/schema.json"}},
    "all of": {"json_schema": {"allOf": [{"anyOf": [{"minLength": i}] * 40} for i in range(40)]}},
}


class Stream:
    """A client in the background, the number of bytes that it has read, and its longest wait."""

    def __init__(self, server: Server) -> None:
        self.n, self.longest_s, self._ends = 0, 0.0, False
        self._server = server
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ends:
            body = json.dumps({"prompt": "a = ", "n_predict": 400, "stream": True})
            head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            with socket.create_connection(("127.0.0.1", self._server.port)) as connection:
                connection.sendall(f"{head}\r\nConnection: close\r\n\r\n{body}".encode())
                last = time.perf_counter()
                while data := connection.recv(1 << 16):
                    now = time.perf_counter()
                    self.n, self.longest_s = self.n + len(data), max(self.longest_s, now - last)
                    last = now

    def __enter__(self) -> Stream:
        self._thread.start()
        wait_until(lambda: self.n > 0)
        self.longest_s = 0.0
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join()
