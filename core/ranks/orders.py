"""What ranks are told: one order for each process, then messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from ..backend.layers import KvTypes
from ..backend.step import Step

PEER_LOST: Final = 75  # exit code: not at fault itself
READY: Final = "ready"
DONE: Final = "done"
FAULT: Final = "fault"
PROGRESS: Final = "progress"
WARNING: Final = "warning"
TAPS: Final = "taps"
END: Final = "end"
NO_ROWS: Final = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Order:
    rank: int
    n_ranks: int
    device: str  # for `create_backend`
    kv_types: KvTypes
    store: str  # the file by which the ranks find each other
    pulse: str  # the file of its `Pulse`
    path: Sequence[str]  # sys.path
    prepare: str = ""  # "module:function" to call first


class Message(NamedTuple):
    """To a rank: the name of a method of its `Worker`, and arguments. From a rank: one of the names
    above, and what belongs to it."""

    name: str
    arguments: tuple[Any, ...] = ()


def for_others(step: Step) -> Step:
    """Without what only the head and its picks need."""
    return replace(step, out_rows=NO_ROWS, requests=None, hidden=None)
