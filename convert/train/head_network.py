"""An MTP head with gradients: the block of its family, unrolled over its own rows.

What it computes is `core/models/drafters/mtp_network.py`; parameters are tensors of the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from ...core.backend.layers import Floats, Matrix, MatrixPart, Norm, Vector
from ...core.backend.reference.float_matrix import ReferenceMatrix, load_bias, load_part
from ...core.backend.reference.paged_attention import normed
from ...core.errors import ConfigError
from ...core.gguf.reader import GgufFile
from ...core.models.drafters.mtp_network import H_NEXTN, MtpHead
from ...core.models.hparams import Hparams
from ...core.models.model import ENDS, Model
from ...core.models.model_weights import Weights
from ..heads.stored_head import EMBED, OWN_HEAD
from .draft_attention import Past
from .head_ops import HeadOps, TextRows
from .training_target import TrainingTarget
from .unrolled_network import UnrolledNetwork

# What choices of experts depend on has no gradient; both ends of the model stay as they are.
FROZEN = (EMBED, OWN_HEAD, "exp_probs_b.bias")

_TAPS = frozenset({H_NEXTN})


class HeadParameters:
    """Takes the tensors of a block as parameters, and notes their names."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.by_name: dict[str, nn.Parameter] = {}

    def matrix(self, parts: Sequence[MatrixPart]) -> Matrix:
        if self.learns(parts[0].tensor.name):
            return LearnedMatrix(parts, self)
        return ReferenceMatrix(parts, torch.device("cpu"), torch.float32)

    def vector(self, values: Floats) -> Tensor:
        return torch.tensor(values)

    def learns(self, name: str) -> bool:
        return name.startswith(self._prefix) and not name.endswith(FROZEN)

    def parameter(self, name: str, values: Tensor) -> Tensor:
        if not self.learns(name):
            return values
        return self.by_name.setdefault(name, nn.Parameter(values.float()))


class LearnedMatrix:
    """Parts of which each is a parameter. Products are float32 wherever they are made."""

    def __init__(self, parts: Sequence[MatrixPart], parameters: HeadParameters) -> None:
        for part in parts:
            if part.scale is not None or part.row_order is not None:
                raise ConfigError(
                    f"--kind mtp: {part.tensor.name} is {part.tensor.format.name}, which is not "
                    "trained here; quantize the head to another type"
                )
        names = [part.tensor.name for part in parts]
        self._learned = [
            parameters.parameter(name, load_part(part))
            for name, part in zip(names, parts, strict=True)
        ]
        self._biases = [
            parameters.parameter(name.removesuffix("weight") + "bias", load_bias(part))
            for name, part in zip(names, parts, strict=True)
            if part.bias is not None
        ]
        if len(self._biases) not in (0, len(parts)):
            raise ConfigError(f"--kind mtp: only some of {', '.join(names)} have a bias")

    @property
    def n_out(self) -> int:
        return sum(part.shape[-2] for part in self._learned)

    def product(self, a: Tensor, expert: int | None = None) -> Tensor:
        weights, biases = (
            [part if expert is None or part.ndim == own else part[expert] for part in parts]
            for parts, own in ((self._learned, 2), (self._biases, 1))
        )
        bias = torch.cat(biases) if biases else None
        return nn.functional.linear(a, torch.cat(weights), bias).float()

    def of_heads(self, a: Tensor) -> Tensor:
        return torch.einsum("hoi,thi->tho", self._learned[0], a).float()


class HeadWeights(Weights):
    """The tensors of a file, those of its head as parameters."""

    backend: HeadParameters

    def norm(
        self, stem: str, width: int, eps: float, *, centred: bool = False, scale: float = 1.0
    ) -> Norm:
        made = super().norm(stem, width, eps, centred=centred, scale=scale)
        name = self.prefix + (stem if self.has_tensor(stem) else f"{stem}.weight")
        return Norm(self.backend.parameter(name, made.weight), eps, centred)

    def vector(self, name: str, *shape: int) -> Vector:
        return self.backend.parameter(self.prefix + name, super().vector(name, *shape))


class HeadNetwork(UnrolledNetwork):
    first = 0  # before which there are zeros

    def __init__(
        self, model: Model, file: GgufFile, step_weights: Sequence[float], longest: int
    ) -> None:
        """`file` has the head, and nothing of the trunk's layers. `longest`: tokens of a text."""
        super().__init__()
        self.step_weights = step_weights
        hparams = Hparams.from_gguf(file, model.hparams.n_vocab)
        prefix = f"blk.{hparams.n_layers}."
        parameters = HeadParameters(prefix)
        weights = HeadWeights(file, parameters)
        (head,) = type(model)(hparams, weights, share=ENDS, trunk=model).nextn
        self.block = cast(MtpHead, head)
        self.stored = parameters.by_name
        if strange := [name for name in self.stored if name not in file.tensors]:
            raise ConfigError(
                f"{file.label}: {strange[0]} is not in the file as it is used; convert the model "
                "again with a converter of today"
            )
        for name, value in self.stored.items():
            self.register_parameter(name.replace(".", "_"), value)
        self._ops = HeadOps(longest)
        self._ends = {
            stem: torch.from_numpy(file.tensors[prefix + stem].floats().copy())
            for stem in (EMBED, OWN_HEAD)
            if prefix + stem in file.tensors
        }

    def begin(self, target: TrainingTarget, features: Tensor) -> Tensor:
        rows = target.last_rows(features[:, :-1], is_normed=self.block.norms_hidden)
        return nn.functional.pad(rows, (0, 0, 1, 0))

    def step(self, target: TrainingTarget, tokens: Tensor, hidden: Tensor, past: Past) -> Tensor:
        return self.step_of(self._ends.get(EMBED, target.embedding)[tokens], hidden, past)

    def step_of(self, embedded: Tensor, hidden: Tensor, past: Past) -> Tensor:
        rows: Any = TextRows(embedded, hidden, len(past))
        left = self.block.forward(self._ops, rows, cast(Any, past), _TAPS).taps[H_NEXTN]
        found: Tensor = left.unflatten(0, hidden.shape[:2])
        return found

    def head_rows(self, hidden: Tensor) -> Tensor:
        if self.block.norms_hidden:
            return hidden
        return normed(hidden, self.block.shared_head_norm)

    def head(self, target: TrainingTarget) -> Tensor:
        own = self._ends.get(OWN_HEAD)
        if own is None:
            return target.head
        return own if target.tokens is None else own[target.tokens]
