"""The folder in which a training keeps its texts, features and network until it has ended.

It belongs to one model, one choice of texts and one seed; anything else is refused.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from ...core.errors import ConfigError
from ...core.speculation.corpus.writer_lock import LockedError, WriterLock

PLAN: Final = "plan.json"


class TrainingPlan(Struct):
    """What a run is about, and the amounts that were measured out for it once."""

    model: str  # fingerprint
    model_name: str
    texts: str  # name of their source
    digest: str  # of the source, the sampling and all else that texts depend on
    seed: int
    minutes: float = 0.0  # for which the amounts were measured out
    tokens: int = 0  # of answers to write
    steps: int = 0  # of training
    n_texts: int = 0  # that are trained on, of those that were written
    kind: str = "eagle3"


class WorkFolder:
    def __init__(self, path: Path, wanted: TrainingPlan) -> None:
        """Raises ConfigError if the folder is that of another run."""
        self.path = path
        found = _read_plan(path)
        for what, is_equal in _differences(found, wanted) if found else ():
            if not is_equal:
                raise ConfigError(
                    f"{path} is the work folder of {what}; give another --work, or delete it to "
                    "begin anew"
                )
        self.plan = found or wanted
        if found is None or found.minutes != wanted.minutes:
            self.plan.minutes, self.plan.tokens, self.plan.steps = wanted.minutes, 0, 0
        path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock = WriterLock(path / ".lock")
        except LockedError:
            raise ConfigError(
                f"{path}: another training works in this folder; wait for its end, or give "
                "another --work"
            ) from None
        self.save()

    def close(self) -> None:
        """Another run may go on from here."""
        self._lock.release()

    def save(self) -> None:
        write_whole(self.path / PLAN, msgspec.json.format(msgspec.json.encode(self.plan)))


def _differences(found: TrainingPlan, wanted: TrainingPlan) -> list[tuple[str, bool]]:
    return [
        (f"another model, {found.model_name}", found.model == wanted.model),
        (f"a drafter of kind {found.kind}", found.kind == wanted.kind),
        (f"another seed, {found.seed}", found.seed == wanted.seed),
        (f"other texts ({found.texts}) or sampling values", found.digest == wanted.digest),
    ]


def _read_plan(path: Path) -> TrainingPlan | None:
    if not (path / PLAN).exists():
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} is no work folder of a training; give another --work")
        return None
    try:
        return msgspec.convert(json.loads((path / PLAN).read_bytes()), TrainingPlan)
    except (ValueError, msgspec.ValidationError):
        raise ConfigError(f"{path / PLAN} is damaged; delete {path} to begin anew") from None


def write_whole(path: Path, data: bytes) -> None:
    """A reader finds the old contents or the new ones, whatever happens meanwhile."""
    beside = path.with_name(path.name + ".new")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
