"""`Trace`: the controller's decisions as JSON lines, one per round (`--spec-trace FILE`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError

_BUFFERED: Final = 256  # rounds


class Trace:
    def __init__(self, path: str | Path) -> None:
        self._path = path
        try:
            self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed by `close`
        except OSError as error:
            raise ConfigError(f"spec-trace: {path} cannot be written: {error.strerror}") from error
        self._lines: list[str] = []

    def write(self, entry: dict[str, Any]) -> None:
        self._lines.append(json.dumps(entry, separators=(",", ":")))
        if len(self._lines) >= _BUFFERED:
            self.flush()

    def flush(self) -> None:
        if self._lines and not self._file.closed:
            lines, self._lines = self._lines, []
            try:
                self._file.write("\n".join(lines) + "\n")
                self._file.flush()
            except OSError as error:
                raise ConfigError(
                    f"spec-trace: {self._path} cannot be written: {error.strerror}"
                ) from error

    def close(self) -> None:
        self.flush()
        self._file.close()
