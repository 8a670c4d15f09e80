"""What kinds of drafters do differently in a training: one class for each value of `--kind`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from ...core.runtime import Runtime
from ...core.speculation.options import EAGLE3
from .draft_export import write_drafter
from .drafter_shape import shape_for
from .eagle3_network import Eagle3Network
from .earlier_drafter import check_drafter, start_from_drafter
from .last_layer import start_from_last_layer
from .training_target import TrainingTarget, tapped_layers
from .unrolled_network import UnrolledNetwork


class DrafterKind(ABC):
    name: ClassVar[str]  # of the drafter that runs the file
    title: ClassVar[str]
    words: ClassVar[str]  # for the tokens of the loss
    layers: tuple[int, ...]  # that the network reads
    begins: str  # what from
    # Whether it begins as a drafter that drafts: that of `start_from`, or else the model's own.
    is_trained: bool

    def __init__(self, runtime: Runtime, start_from: Path | None) -> None:
        """A ConfigError says why no such drafter can be trained for this model, or go on from that
        file."""
        self.start_from = start_from
        self.is_trained = start_from is not None
        self.begins = "" if start_from is None else start_from.name

    @abstractmethod
    def network(
        self,
        runtime: Runtime,
        target: TrainingTarget,
        scale: Tensor,
        step_weights: Sequence[float],
    ) -> UnrolledNetwork:
        """As it begins. `scale` (n_features,) brings features to a mean square of one."""

    @abstractmethod
    def write(
        self,
        path: Path,
        network: Any,
        target: TrainingTarget,
        form: str,
        keys: Mapping[str, Any] | None = None,
    ) -> None:
        """`form`: of the matrices. `keys`: further ones, or others."""


class Eagle3Kind(DrafterKind):
    name, title, words = EAGLE3, "EAGLE3 drafter", "draft tokens"

    def __init__(self, runtime: Runtime, start_from: Path | None) -> None:
        super().__init__(runtime, start_from)
        self.layers = tapped_layers(runtime)
        if start_from is not None:
            sizes = {**shape_for(runtime).size_keys, "vocab_size": runtime.n_vocab}
            check_drafter(start_from, sizes, self.layers)

    def network(
        self,
        runtime: Runtime,
        target: TrainingTarget,
        scale: Tensor,
        step_weights: Sequence[float],
    ) -> Eagle3Network:
        made = Eagle3Network(shape_for(runtime), target, scale, step_weights)
        if self.start_from is not None:
            start_from_drafter(made, self.start_from)
        else:
            taken = start_from_last_layer(made, runtime)
            self.begins = "the target's last layer" if taken else "random weights"
        return made

    def write(
        self,
        path: Path,
        network: Any,
        target: TrainingTarget,
        form: str,
        keys: Mapping[str, Any] | None = None,
    ) -> None:
        write_drafter(path, network, target, form, keys)
