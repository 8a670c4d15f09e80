"""What a drafter has brought to a model, kept per pair of files between runs.

A drafter can fit by all its sizes and still draft nothing that the model would write: that shows
only when it drafts. The counts hold no text. `SPEC_DRAFTER_RESULTS=0` disables them.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ..folders import cache_root
from ..gguf.reader import GgufFile
from ..state.fingerprint import model_fingerprint

logger = logging.getLogger(__name__)

FEW: Final = 32  # drafts, which say little
POOR: Final = 1.1  # tokens of a step, which pay for no drafter
_MOST: Final = 1 << 16  # drafts, after which older ones count half


class DrafterResult(Struct):
    drafts: int = 0
    drafted: int = 0  # tokens
    accepted: int = 0
    feeds_normed: bool | None = None  # what settled the question that some EAGLE3 files leave open

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.drafted or self.drafts < 0:
            raise ValueError("counts that no drafter has")

    @property
    def length(self) -> float:
        """Tokens of a step that has a draft."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def is_poor(self) -> bool:
        return self.drafts >= FEW and self.length < POOR

    def count(self, n_drafted: int, n_accepted: int) -> None:
        self.drafts += 1
        self.drafted += n_drafted
        self.accepted += n_accepted

    def describe(self) -> str:
        return (
            f"{self.length:.2f} tokens per step, in {self.drafts} drafts of "
            f"{self.drafted / max(self.drafts, 1):.1f} tokens"
        )


class ResultFile:
    """Of one drafter for one target. Reading and writing never fail: without a file there is
    nothing yet."""

    def __init__(self, target: GgufFile, drafter: GgufFile, folder: Path | None = None) -> None:
        """The same file twice stands for a head in it."""
        self._files, self._folder = (target, drafter), folder or cache_root() / "drafters"

    @property
    def _path(self) -> Path:
        target, drafter = self._files
        own = model_fingerprint(target)
        other = own if drafter is target else model_fingerprint(drafter)
        return self._folder / f"{own}-{other}.json"

    def read(self) -> DrafterResult:
        if _are_kept():
            with suppress(OSError, ValueError, msgspec.MsgspecError):
                return msgspec.json.decode(self._path.read_bytes(), type=DrafterResult)
        return DrafterResult()

    def add(self, fresh: DrafterResult) -> None:
        """Of two processes at once, one may lose its share."""
        if not fresh.drafts or not _are_kept():
            return
        found = self.read()
        part = 2 if found.drafts > _MOST else 1
        self._write(
            DrafterResult(
                found.drafts // part + fresh.drafts,
                found.drafted // part + fresh.drafted,
                found.accepted // part + fresh.accepted,
                found.feeds_normed,
            )
        )

    def settle(self, *, feeds_normed: bool) -> None:
        if _are_kept():
            self._write(replace(self.read(), feeds_normed=feeds_normed))

    def _write(self, result: DrafterResult) -> None:
        path = self._path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(msgspec.json.encode(result))
            os.replace(file.name, path)
        except OSError as error:
            logger.info("what a drafter brought was not kept: %s", error)


def _are_kept() -> bool:
    return os.environ.get("SPEC_DRAFTER_RESULTS") != "0"
