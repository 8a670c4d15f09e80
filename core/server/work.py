"""`Work`: one text of a request, on its way through the engine."""

from __future__ import annotations

from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..generation import GenerateParams, Stats
from .mailbox import Mailbox

if TYPE_CHECKING:
    from ..engine.sequence import Sequence
    from ..sampling.sampler import Sampler

NO_LANE = -1


@dataclass(eq=False, slots=True)
class Work:
    """Made by the loop's thread; from `Worker.submit` on the engine's thread alone writes to it."""

    prompt: Tokens[int]
    params: GenerateParams
    mailbox: Mailbox
    place: int = 0  # among the texts of its request
    index: int = 0  # among those that share a prompt and a seed
    sampler: Sampler | None = None
    wanted_lane: int = NO_LANE  # as `id_slot` says
    max_ms: float = 0.0  # of writing, once there is a new line; 0: no limit
    reports: bool = False  # on the reading of the prompt
    is_followed: bool = True  # its request wants to know of every token, and not only of the last
    submitted_at: float = 0.0
    lane: int = NO_LANE
    sequence: Sequence | None = None
    began_at: float = 0.0
    first_at: float = 0.0  # when its first token came
    last_at: float = 0.0
    has_new_line: bool = False
    is_cancelled: bool = False
    is_late: bool = False  # it ran into `max_ms`

    @property
    def stats(self) -> Stats:
        return self.sequence.stats if self.sequence is not None else Stats()
