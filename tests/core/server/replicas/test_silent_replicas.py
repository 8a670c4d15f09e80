"""Replicas that stop answering: their requests move to others, or end, and /health says so."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

from support.replicated import ReplicatedServer, replicated
from support.serving import HANGS_S, Server, wait_until

from nextn.core.server.replicas.heartbeats import (
    SILENT_S,
    Beat,
    BeatThread,
    Heartbeats,
)

TEXT = {"prompt": "def add(a, b):", "n_predict": 40, "temperature": 0.8, "seed": 7}
LONG = {"prompt": "a = ", "n_predict": 3000, "ignore_eos": True, "stream": True}


def note_silence(server: ReplicatedServer, *indices: int) -> None:
    server.loop.call_soon_threadsafe(server.replicas.note_silence, *indices)
    wait_until(lambda: server.replicas.silent == set(indices))


def test_what_has_not_been_answered_moves(server: Server) -> None:
    with replicated() as replicas, ThreadPoolExecutor(2) as pool:
        replicas.replicas.hung = {0}
        asked = [
            pool.submit(lambda: replicas.post("/completion", **TEXT, id_slot=0)) for _ in range(2)
        ]
        wait_until(lambda: replicas.replicas.routed.count(0) == 2)
        note_silence(replicas, 0)
        wanted = server.post("/completion", **TEXT)["content"]
        assert [each.result(HANGS_S)["content"] for each in asked] == [wanted] * 2
        assert replicas.get("/health") == {"status": "ok", "replicas": ["silent", "ready"]}
        # What comes now does not go there, but for what only that replica has.
        n_before = replicas.replicas.routed.count(0)
        assert replicas.post("/completion", **TEXT)["content"] == wanted
        assert {slot["replica"] for slot in replicas.get("/slots")} == {1}
        assert "llamacpp:tokens_predicted_total" in replicas.get("/metrics")
        assert replicas.replicas.routed.count(0) == n_before
        assert replicas.refused("/slots/0?action=erase", {})[0] == 503
        replicas.replicas.hung = set()


def test_streams_end_with_an_error() -> None:
    with replicated() as replicas:
        replicas.replicas.hung, replicas.replicas.n_before_lost = {0}, 3
        connection = HTTPConnection("127.0.0.1", replicas.port, timeout=HANGS_S)
        connection.request("POST", "/completion", json.dumps(LONG | {"id_slot": 0}))
        stream = connection.getresponse()
        assert stream.readline().startswith(b"data: ")
        other = HTTPConnection("127.0.0.1", replicas.port, timeout=HANGS_S)
        other.request("POST", "/completion", json.dumps(LONG | {"id_slot": 2, "n_predict": 300}))
        going_on = other.getresponse()
        wait_until(lambda: any(each.is_waiting for each in replicas.replicas.open_requests))
        note_silence(replicas, 0)
        last = json.loads(stream.read().strip().split(b"\n\n")[-1][6:])
        assert "gone away" in last["error"]["message"]
        assert b'"stop":true' in going_on.read()
        replicas.replicas.hung = set()


def test_a_new_replica_keeps_its_requests() -> None:
    """It has answered nothing yet, but the request has not waited for long either."""
    with replicated() as replicas, ThreadPoolExecutor(1) as pool:
        replicas.replicas.hung = {0}
        asked = pool.submit(lambda: replicas.post("/completion", **TEXT, id_slot=0))
        wait_until(lambda: 0 in replicas.replicas.routed)

        def silence() -> None:
            replicas.replicas.silent = {0}
            replicas.replicas.end_silent()

        replicas.loop.call_soon_threadsafe(silence)
        wait_until(lambda: replicas.replicas.silent == {0})
        assert [each.is_lost for each in replicas.replicas.open_requests] == [False]
        note_silence(replicas, 0)
        assert asked.result(HANGS_S)["content"]
        replicas.replicas.hung = set()


def test_if_none_answers() -> None:
    with replicated() as replicas, ThreadPoolExecutor(1) as pool:
        replicas.replicas.hung = {0, 1}
        asked = pool.submit(lambda: replicas.refused("/completion", TEXT))
        wait_until(lambda: len(replicas.replicas.routed) == 1)
        note_silence(replicas, 0, 1)
        assert asked.result(HANGS_S)[0] == 503
        assert replicas.request("GET", "/health")[0] == 503
        replicas.replicas.hung = set()


def test_heartbeats() -> None:
    now = [0.0]
    beats = Heartbeats(2, lambda: now[0])
    assert beats.pulses() == {}
    assert [beats.take_number(f"a:{i}") for i in (1, 2, 3)] == [0, 1, None]
    beats.note(Beat(0, 4, "a:1"))
    beats.note(Beat(1, 4, "a:2"))
    now[0] = SILENT_S
    beats.note(Beat(1, 4, "a:2"))
    now[0] += 0.5
    pulses = beats.pulses()
    assert [pulses[i].is_silent for i in (0, 1)] == [True, False]
    assert (pulses[1].n_slots, pulses[1].process, pulses[1].age) == (4, "a:2", 0.5)
    # Another one takes the place of that which is silent, whatever that says later.
    assert beats.take_number("a:3") == 0
    beats.note(Beat(0, 4, "a:1"))
    assert beats.pulses()[0] == (0, "a:3", 0.0)
    assert beats.take_number("a:4") is None


def test_a_loop_that_does_not_turn_does_not_beat() -> None:
    loop = asyncio.new_event_loop()
    events: list[str] = []
    may_turn, may_beat, has_beaten = (threading.Semaphore(0) for _ in range(3))

    def block() -> None:
        may_turn.acquire()
        events.append("turned")

    def send() -> None:
        events.append("beat")
        has_beaten.release()

    loop.call_soon(block)
    turning = threading.Thread(target=loop.run_forever)
    turning.start()
    thread = BeatThread(send, loop, may_beat.acquire)
    may_turn.release()
    has_beaten.acquire()
    may_beat.release()
    has_beaten.acquire()
    assert events == ["turned", "beat", "beat"]
    stop(loop, turning)
    may_beat.release()
    thread.join()


def stop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    end: Callable[[], None] = loop.stop
    loop.call_soon_threadsafe(end)
    thread.join(HANGS_S)
    loop.close()
