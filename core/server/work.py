"""`Work`: one sequence of a request, from submission to its end."""

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
    """Made in the loop's thread; after `Worker.submit` only the engine's thread writes to it."""

    prompt: Tokens[int]
    params: GenerateParams
    mailbox: Mailbox
    place: int = 0  # among the sequences of its request
    index: int = 0  # among those that share a prompt and a seed
    sampler: Sampler | None = None
    wanted_lane: int = NO_LANE  # `id_slot` of the request
    max_ms: float = 0.0  # of generation, if there is a newline by then; 0: no limit
    reports: bool = False  # `Progress` while the prompt is read
    is_followed: bool = True  # wake the request at every event, not only at the last
    submitted_at: float = 0.0
    lane: int = NO_LANE
    sequence: Sequence | None = None
    began_at: float = 0.0
    first_at: float = 0.0  # when its first token came
    last_at: float = 0.0
    has_new_line: bool = False
    is_cancelled: bool = False
    is_late: bool = False  # ended by `max_ms`

    @property
    def stats(self) -> Stats:
        return self.sequence.stats if self.sequence is not None else Stats()
