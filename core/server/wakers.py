"""Requests that wait until the model is loaded again. All methods run in the loop."""

from __future__ import annotations

import asyncio

from .errors import ApiError


class Wakers:
    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        waker = asyncio.get_running_loop().create_future()
        self._waiting.append(waker)
        await waker

    def tell(self, *, is_there: bool) -> None:
        """Ends all waits; with an `ApiError` if the model is not loaded."""
        waiting, self._waiting = self._waiting, []
        for waker in waiting:
            if waker.done():
                continue
            if is_there:
                waker.set_result(None)
            else:
                waker.set_exception(
                    ApiError(503, "the model cannot be loaded again", retry_after=5)
                )
