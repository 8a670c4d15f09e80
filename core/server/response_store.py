"""`ResponseStore`: responses of `/v1/responses`, kept in memory for a while for those that go on
from them, and for GET and DELETE. What one key wrote does not exist for another."""

from __future__ import annotations

import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import Struct

from .api_errors import ApiError

KEPT: Final = 256
KEPT_BYTES: Final = 64 << 20
KEPT_S: Final = 3600.0
_ID: Final = re.compile(r"resp_(\d{1,4})_")
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[dict[str, Any]]).decode


class StoredResponse(Struct, frozen=True):
    owner: str
    body: bytes  # the response, as JSON
    items: bytes  # its input and output and those of the responses before it, as a list
    ends_at: float

    @property
    def n_bytes(self) -> int:
        return len(self.body) + len(self.items)

    def history(self) -> list[dict[str, Any]]:
        return _decode(self.items)


class ResponseStore:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: OrderedDict[str, StoredResponse] = OrderedDict()  # the oldest first
        self._n_bytes = 0

    def add(self, response: dict[str, Any], items: list[dict[str, Any]], owner: str) -> None:
        """The oldest ones make room for it."""
        end = self._clock() + KEPT_S
        kept = StoredResponse(owner, _encode(response), _encode(items), end)
        self._kept[response["id"]] = kept
        self._n_bytes += kept.n_bytes
        self._forget_old()

    def find(self, key: str, owner: str, param: str | None = None) -> StoredResponse:
        """Raises an `ApiError` if it is not there; `param`: the field that names it."""
        self._forget_old()
        found = self._kept.get(key)
        if found is None or found.owner != owner:
            message = (
                f"there is no response {key!r:.80}: the last {KEPT} are kept for "
                f"{KEPT_S / 60:.0f} minutes, without those that say store: false"
            )
            raise ApiError(404, message, param=param)
        return found

    def remove(self, key: str, owner: str) -> None:
        self.find(key, owner)
        self._drop(key)

    def _forget_old(self) -> None:
        now = self._clock()
        while self._kept:
            key, oldest = next(iter(self._kept.items()))
            is_small = len(self._kept) <= KEPT and self._n_bytes <= KEPT_BYTES
            if is_small and oldest.ends_at > now:
                return
            self._drop(key)

    def _drop(self, key: str) -> None:
        self._n_bytes -= self._kept.pop(key).n_bytes


def new_id(replica: int) -> str:
    """Names the replica that keeps the response."""
    return f"resp_{replica}_{secrets.token_urlsafe(18)}"


def replica_of(key: object) -> int | None:
    """The replica that a response of this id is kept by; None: it is no id of ours."""
    found = _ID.match(key) if isinstance(key, str) else None
    return None if found is None else int(found[1])
