"""What texts leave to later ones: how much is kept, how it is counted; and it changes nothing."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.serving import Server, nano_server, running

TEXT = "def add(a, b):\n    return a + b\n\n\n" * 30
MIB = 1 << 20


def write(server: Server, prompt: str, **more: Any) -> dict[str, Any]:
    done: dict[str, Any] = server.post("/completion", prompt=prompt, n_predict=24, **more)
    return done


def gauges(server: Server) -> dict[str, int]:
    status, text, _ = server.request("GET", "/metrics")
    assert status == 200
    rows = [line.split() for line in text.splitlines() if line.startswith("nextn:cache_")]
    return {name.removeprefix("nextn:cache_"): int(value) for name, value in rows}


def test_a_budget() -> None:
    with running(nano_server(n=2, cache_ram=12 * MIB)) as server:
        store = server.engine.store
        limit = server.get("/props")["cache"]["limit_bytes"]
        assert 10 * MIB < limit <= 12 * MIB
        peak = 0
        for i in range(12):
            write(server, TEXT[i:])
            use = server.get("/props")["cache"]
            assert use["used_bytes"] <= limit
            peak = max(peak, use["used_bytes"])
            assert use["pages"] == store.pool.n_idle
            assert gauges(server) == {
                "bytes": use["used_bytes"],
                "limit_bytes": limit,
                "pages": use["pages"],
                "states": use["states"],
                "evicted": use["evicted"],
            }
        assert peak > limit // 2
        assert use["evicted"] > 0
        assert write(server, TEXT[11:])["timings"]["cache_n"] >= 256
        assert write(server, TEXT)["timings"]["cache_n"] < 256  # of the first little is left


def test_shared_pages_count_once() -> None:
    with running(nano_server(n=2, cache_ram=64 * MIB)) as server:
        write(server, TEXT + "a = 1")
        one = server.get("/props")["cache"]
        for end in ("b = 2", "c = 3", "d = 4"):
            assert write(server, TEXT + end)["timings"]["cache_n"] >= 256
        more = server.get("/props")["cache"]
        assert one["pages"] < more["pages"] <= one["pages"] + 9


def test_the_whole_budget_is_there_while_all_contexts_are_full() -> None:
    with running(nano_server(n=1, cache_ram=64 * MIB, how={"n_ctx": 1100})) as server:
        pool = server.engine.store.pool
        assert pool.n_pages == 18 + 1 + pool.max_idle
        for i in range(5):
            write(server, TEXT[i:])
        for i in range(5):
            assert write(server, TEXT[i:])["timings"]["cache_n"] >= 256


def test_nothing_is_kept() -> None:
    with running(nano_server(n=2, cache_ram=0)) as server:
        for _ in range(2):
            assert write(server, TEXT)["timings"]["cache_n"] == 0
            assert server.get("/props")["cache"] == {
                "limit_bytes": 0, "used_bytes": 0, "pages": 0, "states": 0, "evicted": 0,
            }  # fmt: skip


def test_unless_asked_for() -> None:
    with running(nano_server(n=2, caches_prompts=False)) as server:
        write(server, TEXT)
        assert write(server, TEXT)["timings"]["cache_n"] == 0
        assert write(server, TEXT, cache_prompt=True)["timings"]["cache_n"] >= 256


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/completion"])
def test_what_clients_are_told(server: Server, path: str) -> None:
    body: dict[str, Any] = {"max_tokens": 4, "id_slot": 2}
    text = f"{path} {TEXT}"
    body |= {"messages": [{"role": "user", "content": text}], "prompt": text}
    done = [server.post(path, **body) for _ in range(2)]
    for each, is_second in zip(done, (False, True), strict=True):
        timings = each["timings"]
        assert (timings["cache_n"] >= 256) == is_second
        if "usage" in each:
            usage = each["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == timings["cache_n"]
            assert usage["prompt_tokens"] == timings["cache_n"] + timings["prompt_n"]
        else:
            assert each["tokens_evaluated"] == timings["cache_n"] + timings["prompt_n"]


CHATS = ("Write a stack.", "Sort a list.", "Read a file.", "Count words.")


def talk(server: Server, first: str, n_turns: int, **more: Any) -> list[str]:
    """Settings are the usual ones, but for a seed."""
    messages, told = list[dict[str, str]](), list[str]()
    for turn in range(n_turns):
        messages.append({"role": "user", "content": first if not turn else f"And {turn}?"})
        done = server.post(
            "/v1/chat/completions", messages=messages, seed=turn, max_tokens=32, **more
        )
        told.append(done["choices"][0]["message"]["content"])
        messages.append({"role": "assistant", "content": told[-1]})
    return told


@pytest.mark.parametrize("cache_ram", [None, 4 * MIB])
@pytest.mark.slow
def test_chats_of_ten_turns(cache_ram: int | None) -> None:
    """The cache on == off == without speculation, alone == among others, also where hardly
    anything can be kept."""
    with running(nano_server(cache_ram=cache_ram)) as server:
        want = [talk(server, each, 10) for each in CHATS]
        for more in ({"cache_prompt": False}, {"speculative": False}):
            assert talk(server, CHATS[0], 10, **more) == want[0]
        order = list(range(4)) * 2
        random.Random(1).shuffle(order)
        with ThreadPoolExecutor(8) as pool:
            together = pool.map(lambda i: talk(server, CHATS[i], 10), order)
        assert list(together) == [want[i] for i in order]
        store = server.engine.store
        assert store.cache_use.n_bytes <= store.cache_use.limit
        assert store.pool.n_held == 0
