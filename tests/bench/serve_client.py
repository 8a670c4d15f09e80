"""Eight clients that stream, against any server with llama.cpp's `/completion`."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

from support.served import request_bytes

N_STREAMS, N_TOKENS = 8, 384
PROMPTS = (
    "def add(a, b):\n", "import os\n\ndef read(path):\n", "class Stack:\n    def __init__(self):\n",
    "for i in range(10):\n    print(", "# Sort a list\ndef sort(numbers):\n", "x = [1, 2]\ny = [",
    "def fibonacci(n):\n    if n", "try:\n    value = int(text)\nexcept",
)  # fmt: skip


@dataclass
class Arrivals:
    """When which tokens came: seconds, and how many there were then."""

    moments: list[tuple[float, int]] = field(default_factory=list)


def body_of(i: int, n: int = N_TOKENS, **more: Any) -> dict[str, Any]:
    return {
        "prompt": PROMPTS[i % len(PROMPTS)], "n_predict": n, "ignore_eos": True, "stream": True,
        "seed": i, "cache_prompt": False, **more,
    }  # fmt: skip


async def stream(port: int, body: dict[str, Any], arrivals: Arrivals) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes("POST", "/completion", body))
    rest = b""
    while data := await reader.read(1 << 16):
        now = time.perf_counter()
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                arrivals.moments.append((now, event.get("tokens_predicted", 0)))
    writer.close()


async def together(port: int, n: int = N_TOKENS, **more: Any) -> list[Arrivals]:
    arrivals = [Arrivals() for _ in range(N_STREAMS)]
    await asyncio.gather(
        *(stream(port, body_of(i, n, **more), arrivals[i]) for i in range(N_STREAMS))
    )
    return arrivals


def rate(port: int, **more: Any) -> float:
    """Tokens/s of all streams, from the requests to the last token."""
    began = time.perf_counter()
    arrivals = asyncio.run(together(port, **more))
    seconds = time.perf_counter() - began
    if any(each.moments[-1][1] != N_TOKENS for each in arrivals):
        raise AssertionError("not all tokens came")
    return N_STREAMS * N_TOKENS / seconds
