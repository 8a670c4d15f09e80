"""MTP heads: of a model that has one, or that of another file, or a new one like the last layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from ...core.backend.layers import float_part
from ...core.errors import ConfigError, ModelError
from ...core.gguf.metadata import Metadata
from ...core.gguf.reader import GgufFile, open_gguf
from ...core.models import ARCHITECTURES, plan_networks
from ...core.models.model import Model
from ...core.runtime import Runtime
from ...core.speculation.options import MTP
from ..files.attach_head import copied
from ..files.layer_keys import entries_of, with_head
from ..files.model_parts import ModelParts, parts_of
from ..files.output_file import OutputFile, write
from ..files.recombine import head_alone
from ..heads.family_table import FAMILIES
from ..heads.mtp_family import NEXTN_STEMS
from .answer_writing import N_CTX
from .draft_export import encoded
from .drafter_kinds import DrafterKind
from .head_network import HeadNetwork
from .training_target import TrainingTarget

MADE: Final = {*NEXTN_STEMS, "nextn.shared_head_norm"}  # of a new head; the rest is a layer's
MOST_RECIPROCAL: Final = 4.0  # of the last norm, by which its rows are brought back
# What a layer adds to its rows, which are longer than those of a head.
SHORTENED: Final = (
    "attn_output.weight",
    "ffn_down.weight",
    "ffn_down_exps.weight",
    "ffn_down_shexp.weight",
)


class MtpKind(DrafterKind):
    name, title, words = MTP, "MTP head", "tokens in the loss"

    def __init__(self, runtime: Runtime, start_from: Path | None) -> None:
        super().__init__(runtime, start_from)
        self.layers = (runtime.model.hparams.n_layers,)
        arch, label = runtime.file.metadata.architecture, runtime.file.label
        if arch not in FAMILIES:
            known = ", ".join(sorted(FAMILIES.keys() & ARCHITECTURES.keys()))
            raise ConfigError(
                f"{label}: --kind mtp is for architectures that have MTP heads ({known}), and this "
                f"is {arch}; --kind eagle3 makes a drafter for it"
            )
        self.file = self._head(runtime)
        n_heads = parts_of(self.file).n_heads
        if n_heads > 1:
            raise ConfigError(
                f"{self.file.label}: has {n_heads} MTP heads, one for each token of a draft; "
                "--kind mtp trains one that drafts all of them"
            )
        self._network = checked_network(runtime.model, self.file)

    def network(
        self,
        runtime: Runtime,
        target: TrainingTarget,
        scale: Tensor,
        step_weights: Sequence[float],
    ) -> HeadNetwork:
        made = self._network
        made.step_weights = step_weights
        if not self.is_trained:
            with torch.no_grad():
                for name, parameter in made.stored.items():
                    if name.endswith(SHORTENED):
                        parameter.mul_(scale[-1])
        return made

    def write(
        self,
        path: Path,
        network: Any,
        target: TrainingTarget,
        form: str,
        keys: Mapping[str, Any] | None = None,
    ) -> None:
        tensors = [
            encoded(name, network.stored[name], form)
            if name in network.stored
            else copied(self.file, name)
            for name in self.file.tensors
        ]
        entries = {**entries_of(self.file.metadata), **(keys or {})}
        write(OutputFile(path, overwrite=True), entries, tensors, [self.file])

    def _head(self, runtime: Runtime) -> GgufFile:
        """A file with the head that training begins from, and nothing of the trunk's layers."""
        own = runtime.file
        if self.start_from is not None:
            found = head_alone(open_gguf(self.start_from))
            if found.metadata.architecture != own.metadata.architecture:
                raise ConfigError(
                    f"--start-from {found.label}: is of {found.metadata.architecture}, and "
                    f"{own.label} is {own.metadata.architecture}"
                )
            return found
        if parts_of(own).n_heads:
            self.is_trained, self.begins = True, "the model's own head"
            return head_alone(own)
        made, layer = new_head(own, runtime.model.norms_hidden)
        self.begins = f"layer {layer} of the model"
        return made


def checked_network(model: Model, file: GgufFile) -> HeadNetwork:
    """After a draft behind a few rows, so that what cannot be trained is refused at once."""
    plan_networks(model, file)
    network = HeadNetwork(model, file, (1.0,), N_CTX)
    rows = torch.ones(1, 3, model.hparams.n_embd)
    with torch.no_grad():
        network.step_of(rows, rows, [])
    return network


def new_head(file: GgufFile, norms_hidden: bool) -> tuple[GgufFile, int]:
    """A head built like the last layer that has all that the family's heads have, from the hidden
    row alone; with the number of that layer. A ModelError says that there is none."""
    parts = parts_of(file)
    layer = _like_head(file, parts)
    entries = with_head(file, parts, 1, {}, lambda block, kind: layer)
    first, old = f"blk.{parts.n_trunk}.", f"blk.{layer}."
    names = {
        name: first + name.removeprefix(old) if name.startswith(old) else name
        for name in file.tensors
        if name.startswith(old) or not name.startswith("blk.")
    }
    norm = file.tensors["output_norm.weight"].floats()
    width = len(norm)
    identity = np.eye(width, dtype=np.float32)
    # Rows behind the last norm are brought back to what they were before it.
    with np.errstate(divide="ignore"):
        hnorm = np.clip(np.abs(norm).mean() / norm, -MOST_RECIPROCAL, MOST_RECIPROCAL)
    values = {
        "nextn.eh_proj.weight": np.concatenate([np.zeros_like(identity), identity], 1),
        "nextn.enorm.weight": np.ones(width, np.float32),
        "nextn.hnorm.weight": hnorm if norms_hidden else np.ones(width, np.float32),
        "nextn.shared_head_norm.weight": norm,
    }
    new = {first + stem: numbers for stem, numbers in values.items()}
    made = replace(
        file,
        metadata=Metadata(entries, file.label),
        tensors={
            **{name: replace(file.tensors[at], name=name) for at, name in names.items()},
            **{name: float_part(name, numbers).tensor for name, numbers in new.items()},
        },
        ranges={name: file.ranges[at] for at, name in names.items()},
    )
    return head_alone(made), layer


def _like_head(file: GgufFile, parts: ModelParts) -> int:
    family = FAMILIES[parts.architecture]
    for layer in reversed(range(parts.n_trunk)):
        present = {stem.rpartition(".")[0] for stem in parts.blocks[layer]}
        if family.block and not set(family.missing(present)) - MADE:
            return layer
    raise ModelError(
        f"{file.label}: has no MTP head, and no layer that one could begin as; give one with "
        "--start-from HEAD, or --kind eagle3"
    )
