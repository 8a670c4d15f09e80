"""How an engine cuts its work."""

from __future__ import annotations

from msgspec import Struct, field

from ..errors import ConfigError
from ..speculation.acceptance import Acceptance
from ..state.sizes import PREFILL_CHUNK, StateSizes


class EngineConfig(Struct, frozen=True):
    sizes: StateSizes
    chunk: int = PREFILL_CHUNK  # rows of prompts in one step; a multiple of the page length
    reuse: bool = True  # keep finished sequences in the prefix cache
    batch_invariant: bool = True  # see `StateStore`
    acceptance: Acceptance = field(default_factory=Acceptance)  # which draft tokens are kept

    def __post_init__(self) -> None:
        if self.chunk < 1 or self.chunk % self.sizes.page_len:
            raise ConfigError(
                f"prompt pieces of {self.chunk} rows are not whole pages of {self.sizes.page_len}"
            )

    @property
    def max_rows(self) -> int:
        """Of one step: a prompt piece beside the longest draft of every sequence."""
        return self.chunk + self.sizes.n_slots * self.sizes.window
