"""Asking a replica: HTTP/1.1 as our own servers speak it, and a read per token at most.

A stream's chunks are passed on whole, since one holds whole events: what a dying replica has sent
by half is never seen by a client.
"""

from __future__ import annotations

import asyncio
from asyncio import LimitOverrunError
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

Headers = list[tuple[bytes, bytes]]
_READ: Final = 1 << 16
_CONNECT_S: Final = 5.0
_MAX_HEAD: Final = 1 << 16
_MAX_IDLE: Final = 64  # connections
_LAST_WORDS_S: Final = 0.3


class BrokenReplicaError(Exception):
    """It has gone away, or what it says makes no sense."""


class Address(NamedTuple):
    host: str
    port: int


class Connection:
    """To a replica, for one exchange after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def is_alive(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())

    def close(self) -> None:
        self.writer.transport.abort()


class Exchange:
    """A request and its response."""

    def __init__(self, connection: Connection, status: int, headers: Headers, *, bare: bool):
        self.status, self.headers = status, headers
        self.is_complete = False
        self._connection = connection
        known = dict(headers)
        self.is_chunked = known.get(b"transfer-encoding", b"").lower() == b"chunked"
        self._length = 0 if bare else int(known.get(b"content-length", b"0"))
        self.keeps = known.get(b"connection", b"").lower() != b"close"

    async def chunks(self) -> AsyncIterator[bytes]:
        """As they come, joined where several have come."""
        buffer = bytearray()
        while True:
            data = await read(self._connection, _READ)
            buffer += data
            whole, self.is_complete = take_chunks(buffer)
            if whole:
                yield whole
            if self.is_complete:
                return

    async def body(self) -> bytes:
        if self.is_chunked:
            return b"".join([part async for part in self.chunks()])
        parts, missing = [], self._length
        while missing > 0:
            parts.append(await read(self._connection, min(missing, _READ)))
            missing -= len(parts[-1])
        self.is_complete = True
        return b"".join(parts)


async def read(connection: Connection, n: int) -> bytes:
    try:
        data = await connection.reader.read(n)
    except OSError as error:
        raise BrokenReplicaError(str(error)) from None
    if not data:
        raise BrokenReplicaError("it has closed the connection")
    return data


def take_chunks(buffer: bytearray) -> tuple[bytes, bool]:
    """What is complete, and whether it was the end. The rest stays in `buffer`."""
    whole, at = list[bytes](), 0
    while (line := buffer.find(b"\r\n", at)) >= 0:
        try:
            size = int(buffer[at:line].partition(b";")[0], 16)
        except ValueError:
            size = -1
        if size < 0:
            raise BrokenReplicaError("a chunk without a size")
        end = line + 2 + size
        if len(buffer) < end + 2:
            break
        if size == 0:
            del buffer[:]
            return b"".join(whole), True
        whole.append(bytes(buffer[line + 2 : end]))
        at = end + 2
    del buffer[:at]
    return b"".join(whole), False


class Client:
    """Of one replica at one address. `key`: what it wants to be shown, a header of its own."""

    def __init__(self, address: Address, key: Headers) -> None:
        self.address = address
        self._key = key
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._is_closed = False

    async def ask(
        self, method: bytes, target: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes
    ) -> Exchange:
        """`finish` has to be called with the result."""
        head = [method + b" " + target + b" HTTP/1.1", b"host: localhost"]
        head += [name + b": " + value for name, value in (*headers, *self._key)]
        head += [b"content-length: %d" % len(body), b"", body]
        raw = b"\r\n".join(head)
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_alive:
                connection.close()
                continue
            try:
                return await self._exchange(connection, method, raw)
            except BrokenReplicaError:  # perhaps it had just been given up for being idle
                continue
        return await self._exchange(await self._connect(), method, raw)

    async def fetch(self, target: bytes, seconds: float = 5.0) -> tuple[int, Headers, bytes]:
        """A whole GET."""
        try:
            async with asyncio.timeout(seconds):
                exchange = await self.ask(b"GET", target, (), b"")
                try:
                    return exchange.status, exchange.headers, await exchange.body()
                finally:
                    self.finish(exchange)
        except TimeoutError:
            raise BrokenReplicaError("it does not answer") from None

    def finish(self, exchange: Exchange) -> None:
        """If it is not complete, the replica learns that nobody listens any more."""
        connection = exchange._connection
        self._open.discard(connection)
        can_stay = exchange.is_complete and exchange.keeps and not self._is_closed
        if can_stay and connection.is_alive and len(self._idle) < _MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """The replica is lost: whoever waits for it is told, but what it has sent comes first."""
        self._is_closed = True
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, self._close_all)

    def _close_all(self) -> None:
        for connection in self._open:
            connection.close()

    async def _connect(self) -> Connection:
        if self._is_closed:
            raise BrokenReplicaError("it is lost")
        try:
            async with asyncio.timeout(_CONNECT_S):
                reader, writer = await asyncio.open_connection(*self.address, limit=_MAX_HEAD)
        except (OSError, TimeoutError) as error:
            raise BrokenReplicaError(str(error) or "it does not answer") from None
        return Connection(reader, writer)

    async def _exchange(self, connection: Connection, method: bytes, raw: bytes) -> Exchange:
        self._open.add(connection)
        try:
            connection.writer.write(raw)
            head = await connection.reader.readuntil(b"\r\n\r\n")
            status, headers = read_head(head)
            return Exchange(connection, status, headers, bare=method == b"HEAD")
        except BaseException as error:
            self._open.discard(connection)
            connection.close()
            if isinstance(error, (OSError, EOFError, ValueError, IndexError, LimitOverrunError)):
                raise BrokenReplicaError(str(error)) from None
            raise


def read_head(head: bytes) -> tuple[int, Headers]:
    first, *lines = head[:-4].split(b"\r\n")
    headers = []
    for line in lines:
        name, _, value = line.partition(b":")
        headers.append((name.strip().lower(), value.strip()))
    return int(first.split(b" ", 2)[1]), headers
