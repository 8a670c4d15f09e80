"""Training of one network on texts that the target has read; it can be stopped and goes on."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from ...core.errors import ConfigError
from .dflash_network import DFlashNetwork
from .network_parts import HAS_BFLOAT16
from .optimiser import Optimiser
from .training_schedule import Clock, TrainingBudget
from .training_target import TrainingTarget
from .unrolled_network import UnrolledNetwork

ROWS = 4  # texts of a batch
LENGTHS = 64  # texts have a multiple of it
N_HELD_OUT = 64  # texts
MAX_GRADIENT = 5.0
STACK_RATES = {"_exps_weight": 0.001}  # of experts
REPORT_EVERY, SAVE_EVERY = 25, 500  # steps

_log = logging.getLogger("nextn.convert.train")


class ReadText(Struct, frozen=True):
    """A text with what the target makes of it."""

    tokens: Tensor  # (T,)
    features: Tensor  # (T, n_features), times `scale`
    first: int = 0  # the first token that the target wrote
    scale: Tensor | float = 1.0


class Batch(NamedTuple):
    tokens: Tensor  # (B, T)
    features: Tensor
    sizes: Tensor  # (B,)
    starts: Tensor  # (B,) the first token of each that the target wrote


def batches(texts: Sequence[ReadText], rows: int, seed: int, n_skipped: int = 0) -> Iterator[Batch]:
    """Texts of about the same length together, in random order, again and again."""
    by_size = sorted(range(len(texts)), key=lambda i: len(texts[i].tokens))
    groups = [by_size[first : first + rows] for first in range(0, len(texts), rows)]
    rng = np.random.default_rng(seed)
    while True:
        for group in rng.permutation(len(groups)):
            if n_skipped:
                n_skipped -= 1
                continue
            yield joined([texts[i] for i in groups[group]])


def joined(texts: Sequence[ReadText]) -> Batch:
    """Padded to few lengths: products of every new shape take time and memory of their own."""
    sizes = torch.tensor([len(text.tokens) for text in texts])
    length = -(-int(sizes.max()) // LENGTHS) * LENGTHS
    tokens = torch.zeros(len(texts), length, dtype=torch.long)
    features = torch.zeros(len(texts), length, texts[0].features.shape[1])
    for i, text in enumerate(texts):
        tokens[i, : sizes[i]] = text.tokens
        features[i, : sizes[i]] = text.features.float() / text.scale
    return Batch(tokens, features, sizes, torch.tensor([text.first for text in texts]))


class DraftTrainer:
    def __init__(
        self,
        network: UnrolledNetwork | DFlashNetwork,
        target: TrainingTarget,
        texts: Sequence[ReadText],
        budget: TrainingBudget,
        *,
        n_held_out: int = N_HELD_OUT,
        rows: int = ROWS,
        seed: int = 1,
    ) -> None:
        if len(texts) < n_held_out + rows:
            raise ConfigError(
                f"{len(texts)} texts are too few: {n_held_out} are held out, and a batch has {rows}"
            )
        self.network, self.target, self.budget = network, target, budget
        self.held_out = texts[:n_held_out]
        self.texts, self.rows, self.seed = texts[n_held_out:], rows, seed
        self._recent: list[float] = []
        self.optimiser = Optimiser(network, STACK_RATES)
        self.clock, self.step, self.tokens = Clock(), 0, 0

    @property
    def part(self) -> float:
        return self.budget.progress(self.tokens, self.clock.seconds, self.step)

    def run(
        self,
        save: Callable[[], None] | None = None,
        save_every: int = SAVE_EVERY,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        """To the end of the budget. `save` is called now and then, and at the end. `progress` gets
        the loss of each step; without it lines are logged."""
        show = progress or self._log_step
        for batch in batches(self.texts, self.rows, self.seed, self.step):
            if self.part >= 1:
                break
            start = time.monotonic()
            loss = self._step(batch)
            self.clock.add(time.monotonic() - start)
            show(loss)
            if save is not None and self.step % save_every == 0:
                save()
        if save is not None:
            save()

    def state(self) -> dict[str, Any]:
        """All that a run needs to go on as if it had not been stopped."""
        return {
            "network": self.network.state_dict(),
            "optimiser": self.optimiser.state(),
            "random": torch.get_rng_state(),
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.clock.seconds,
        }

    def go_on(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimiser.go_on(state["optimiser"])
        torch.set_rng_state(state["random"])
        self.step, self.tokens = state["step"], state["tokens"]
        self.clock.seconds = state["seconds"]

    def times(self, n: int) -> list[float]:
        """Seconds of so many steps, after which the network is as it was."""
        before = deepcopy(self.network.state_dict())
        tried = DraftTrainer(
            self.network,
            self.target,
            [*self.held_out, *self.texts],
            TrainingBudget(steps=1 << 20),
            n_held_out=len(self.held_out),
            rows=self.rows,
            seed=self.seed,
        )
        found: list[float] = []
        for _, batch in zip(range(n), batches(self.texts, self.rows, self.seed), strict=False):
            began = time.monotonic()
            tried._step(batch)
            found.append(time.monotonic() - began)
        self.network.load_state_dict(before)
        return found

    @torch.no_grad()
    def acceptance(self) -> list[float]:
        """The share of held-out tokens at each place of a draft that both distributions share,
        where all before are right; of a drafter of one token at a time."""
        network = self.network
        assert isinstance(network, UnrolledNetwork), "other drafters are not measured like this"
        with torch.autocast("cpu", torch.bfloat16, enabled=HAS_BFLOAT16):
            shared = [
                network.acceptance(self.target, *joined(self.held_out[first : first + ROWS]))
                for first in range(0, len(self.held_out), ROWS)
            ]
        totals = torch.stack(shared).sum(0)  # (places, 2)
        return (totals[:, 0] / totals[:, 1].clamp(min=1)).tolist()

    def _log_step(self, loss: float) -> None:
        self._recent.append(loss)
        if self.step % REPORT_EVERY == 0:
            mean, self._recent = sum(self._recent) / len(self._recent), []
            _log.info(
                "%5.1f %%  step %d  %.3fM tokens  %.1f min  loss %.4f",
                100 * self.part, self.step, self.tokens / 1e6, self.clock.seconds / 60, mean,
            )  # fmt: skip
        if self.step % SAVE_EVERY == 0:
            _log.info("held out %.4f", self.measure())

    def _step(self, batch: Batch) -> float:
        of_acceptance = self.part >= self.budget.of_acceptance_from
        loss = self._loss(batch, of_acceptance=of_acceptance)
        loss.backward()
        norm = float(torch.nn.utils.clip_grad_norm_(self.network.parameters(), MAX_GRADIENT))
        if not math.isfinite(norm):
            raise FloatingPointError(f"the gradient of step {self.step} is {norm}")
        self.optimiser.step(self.budget.rate_at(self.part))
        self.step += 1
        self.tokens += int(batch.sizes.sum())
        return float(loss.detach())

    def _loss(self, batch: Batch, *, of_acceptance: bool = False) -> Tensor:
        network, target = self.network, self.target
        with torch.autocast("cpu", torch.bfloat16, enabled=HAS_BFLOAT16):
            if isinstance(network, UnrolledNetwork):
                return network.loss(target, *batch, of_acceptance=of_acceptance)
            return network.loss(target, *batch[:3])

    @torch.no_grad()
    def measure(self) -> float:
        """The loss on texts that are not trained on."""
        parts = range(0, len(self.held_out), ROWS)
        losses = [self._loss(joined(self.held_out[first : first + ROWS])) for first in parts]
        return float(torch.stack(losses).mean())
