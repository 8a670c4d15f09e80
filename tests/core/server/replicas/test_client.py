"""HTTP as the front speaks it to its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.server.replicas.client import (
    Address,
    BrokenReplicaError,
    Client,
    read_head,
    take_chunks,
)


def encoded(parts: list[bytes]) -> bytes:
    """By a library that nobody here wrote."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    connection.next_event()
    head = connection.send(h11.Response(status_code=200, headers=[("X-A", "b: c")]))
    assert head is not None
    status, headers = read_head(head)
    assert status == 200
    assert dict(headers) == {b"x-a": b"b: c", b"transfer-encoding": b"chunked"}
    sent = [connection.send(h11.Data(data=part)) for part in parts if part]
    sent.append(connection.send(h11.EndOfMessage()))
    return b"".join(data for data in sent if data is not None)


@given(st.lists(st.binary(max_size=40), max_size=6), st.lists(st.integers(1, 30), max_size=30))
def test_chunks_are_taken_whole(parts: list[bytes], cuts: list[int]) -> None:
    data, buffer, found, is_over = encoded(parts), bytearray(), b"", False
    ends = {len(b"".join(parts[: i + 1])) for i in range(len(parts))} | {0}
    for cut in [*cuts, len(data)]:
        assert not (is_over and data)
        buffer += data[:cut]
        data = data[cut:]
        whole, is_over = take_chunks(buffer)
        found += whole
        assert len(found) in ends
        if not data:
            break
    assert is_over
    assert found == b"".join(parts)


@given(st.binary(max_size=60))
def test_chunks_of_nonsense(data: bytes) -> None:
    try:
        whole, _ = take_chunks(bytearray(data))
    except BrokenReplicaError:
        return
    assert len(whole) <= len(data)


OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


def against(replies: list[bytes], ask: Callable[[Client], Awaitable[None]]) -> list[int]:
    """A server that says these, one a request, and hangs up after an empty one. The requests of
    each connection."""
    asked: list[int] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(0)
        place = len(asked) - 1
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                asked[place] += 1
                reply = replies.pop(0)
                if not reply:
                    return
                writer.write(reply)
        except (EOFError, OSError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = Client(Address("127.0.0.1", port), [(b"x-key", b"secret")])
        await ask(client)
        client.close()
        server.close()

    asyncio.run(main())
    return asked


def test_connections_are_kept() -> None:
    async def ask(client: Client) -> None:
        for _ in range(3):
            assert await client.fetch(b"/") == (200, [(b"content-length", b"2")], b"hi")

    assert against([OK, OK, OK], ask) == [3]


def test_a_kept_connection_that_was_given_up() -> None:
    async def ask(client: Client) -> None:
        for _ in range(2):
            assert (await client.fetch(b"/"))[2] == b"hi"

    assert against([OK, b"", OK], ask) == [2, 1]


@pytest.mark.parametrize(
    "reply",
    [
        b"", b"nonsense\r\n\r\n", b"HTTP/1.1 x\r\n\r\n", OK[:-1] + b"",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
    ],
)  # fmt: skip
def test_broken_replies(reply: bytes) -> None:
    async def ask(client: Client) -> None:
        with pytest.raises(BrokenReplicaError):
            await client.fetch(b"/", 0.5)

    against([reply, b"", b""], ask)


def test_who_does_not_listen() -> None:
    async def ask(client: Client) -> None:
        with pytest.raises(BrokenReplicaError):
            await Client(Address("127.0.0.1", 1), []).fetch(b"/")
        client.close()
        with pytest.raises(BrokenReplicaError):
            await client.fetch(b"/")

    against([], ask)
