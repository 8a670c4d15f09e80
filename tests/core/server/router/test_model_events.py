"""Events about the models of a server, for several clients."""

from __future__ import annotations

import asyncio

from nextn.core.server.router.model_events import ModelEvents


def test_a_client_that_does_not_read_is_left_out() -> None:
    async def send_many() -> tuple[list[bytes], list[bytes]]:
        events = ModelEvents()
        slow, quick = events.open(), events.open()
        read = []
        for i in range(1500):
            events.send("m", f"e{i}")
            read.append(await quick.get())
        return read, [slow.get_nowait() for _ in range(slow.qsize())]

    read, unread = asyncio.run(send_many())
    assert len(read) == 1500
    assert read[7] == b'data: {"model":"m","event":"e7"}\n\n'
    assert unread[-1] == b"", "its stream ends"
    assert len(unread) <= 1000


def test_the_end_is_also_for_those_who_come_later() -> None:
    async def end() -> bytes:
        events = ModelEvents()
        events.end()
        return await events.open().get()

    assert asyncio.run(end()) == b""
