"""llama.cpp beside us on the same file: `--peer xllamacpp`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import threading
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, Self

from msgspec import Struct, field

from ..errors import ConfigError, MissingDependencyError
from ..speculation.options import (
    ASSISTANT,
    AUTO,
    DFLASH,
    DRAFT,
    DRAFT_N_MAX,
    EAGLE3,
    FROM_FILES,
    MTP,
    NGRAM_CACHE,
    NGRAM_MAP_K,
    NGRAM_MAP_K4V,
    NGRAM_MOD,
    NGRAM_SIMPLE,
    NONE,
    SpecOptions,
)
from .peer_server import READY
from .wire import ServerError

PACKAGE: Final = "xllamacpp"
# Our names of what drafts, and llama.cpp's.
_TYPES: Final = {
    MTP: "draft-mtp",
    DRAFT: "draft-simple",
    EAGLE3: "draft-eagle3",
    DFLASH: "draft-dflash",
    ASSISTANT: "draft-mtp",
    NGRAM_SIMPLE: "ngram-simple",
    NGRAM_MAP_K: "ngram-map-k",
    NGRAM_MAP_K4V: "ngram-map-k4v",
    NGRAM_MOD: "ngram-mod",
    NGRAM_CACHE: "ngram-cache",
}
_LEAVE_S: Final = 5.0
_SHOWN: Final = 300


class PeerSettings(Struct, frozen=True):
    """The settings that are the same on both sides."""

    model: Path
    threads: int
    n_ctx: int
    n_slots: int = 1
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    spec: SpecOptions = field(default_factory=lambda: SpecOptions(types=(NONE,)))
    draft_model: Path | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "model": str(self.model),
            "threads": self.threads,
            "n_ctx": self.n_ctx,
            "n_slots": self.n_slots,
            "cache_type_k": self.cache_type_k,
            "cache_type_v": self.cache_type_v,
            "types": peer_types(self.spec),
            "sizes": _sizes(self.spec),
            "draft_model": str(self.draft_model) if self.draft_model else "",
        }


def peer_types(spec: SpecOptions) -> list[str]:
    """ConfigError for what llama.cpp does not have."""
    names = [name for name in spec.types if name != NONE]
    if AUTO in names:
        raise ConfigError(
            "llama.cpp has no controller, so a peer cannot be auto; name what drafts, as mtp:n=3"
        )
    for name in names:
        if name not in _TYPES:
            raise ConfigError(f"llama.cpp has no {name}, so that a peer cannot draft with it")
    return [_TYPES[name] for name in names]


def _sizes(spec: SpecOptions) -> dict[str, dict[str, Any]]:
    """Sizes by part of llama.cpp's parameters, only of what drafts."""
    sizes: dict[str, dict[str, Any]] = {}
    if {*FROM_FILES} & set(spec.types):
        n_max = DRAFT_N_MAX if spec.draft_n_max is None else spec.draft_n_max
        sizes["draft"] = {"n_max": n_max, "n_min": spec.draft_n_min, "p_min": spec.draft_p_min}
    for name in (NGRAM_SIMPLE, NGRAM_MAP_K, NGRAM_MAP_K4V):
        if name in spec.types:
            part = name.replace("-", "_")
            own = getattr(spec, part)
            sizes[part] = {"size_n": own.size_n, "size_m": own.size_m, "min_hits": own.min_hits}
    if NGRAM_MOD in spec.types:
        mod = spec.ngram_mod
        sizes["ngram_mod"] = {"n_match": mod.n_match, "n_min": mod.n_min, "n_max": mod.n_max}
    if spec.synth_len is not None:
        sizes[""] = {"synth_len": spec.synth_len}
    elif spec.synth_rates:
        sizes[""] = {"synth_rates": list(spec.synth_rates)}
    return sizes


class Peer:
    """A running llama.cpp; `with` ends it."""

    def __init__(self, settings: PeerSettings, *, start_s: float = 600.0) -> None:
        if find_spec(PACKAGE) is None:
            raise MissingDependencyError(f"--peer {PACKAGE} needs llama.cpp: pip install {PACKAGE}")
        line = json.dumps(settings.to_json()) + "\n"
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as it
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.peer_server"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr,
        )  # fmt: skip
        try:
            self.url = self._start(line, settings.model, start_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _start(self, line: str, model: Path, start_s: float) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        is_late = threading.Event()

        def give_up() -> None:
            is_late.set()
            self._process.kill()

        watchdog = threading.Timer(start_s, give_up)
        watchdog.start()
        try:
            with contextlib.suppress(OSError):  # it has ended; its stderr holds the reason
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
            for output in iter(self._process.stdout.readline, b""):
                if output.startswith(READY.encode()):
                    return output.decode()[len(READY) :].strip()
        finally:
            watchdog.cancel()
        code = self._process.wait()
        late = f" within {start_s:g} s" if is_late.is_set() else ""
        why = self.last_output() or f"it ended with {code}"
        raise ServerError(f"llama.cpp ({PACKAGE}) did not start with {model}{late}: {why}")

    def last_output(self) -> str:
        """The end of what it wrote to stderr, in one line."""
        with contextlib.suppress(OSError, ValueError):
            self._stderr.seek(0)
            lines = self._stderr.read().decode("utf-8", "replace").split("\n")
            return " / ".join(line.strip() for line in lines if line.strip())[-_SHOWN:]
        return ""

    def close(self) -> None:
        """Close its input, then terminate it, then kill it."""
        process = self._process
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        for make in (process.terminate, process.kill):
            try:
                process.wait(_LEAVE_S)
                break
            except subprocess.TimeoutExpired:
                make()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._stderr.close()


def peer_version() -> str:
    try:
        return f"{PACKAGE} {version(PACKAGE)}"
    except PackageNotFoundError:
        return PACKAGE
