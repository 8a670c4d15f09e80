"""Model architectures: one row each, and the function that builds a model from a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import ModelError

if TYPE_CHECKING:
    from ..backend.interface import Backend
    from ..gguf.reader import GgufFile
    from .hparams import Hparams
    from .model import Model, Share
    from .model_weights import Demand, Inventory, Weights

ARCHITECTURES = {
    "llama": "llama:Llama",
    "qwen2": "qwen2:Qwen2",
    "qwen3": "qwen3:Qwen3",
    "qwen3moe": "qwen3moe:Qwen3Moe",
    "qwen3next": "qwen3next:Qwen3Next",
    "qwen35": "qwen35:Qwen35",
    "qwen35moe": "qwen35moe:Qwen35Moe",
}


def build_model(
    file: GgufFile,
    backend: Backend,
    check: Callable[[Demand], None] | None = None,
    *,
    with_nextn: bool = True,
) -> Model:
    """Check the whole file against its architecture, then hand every tensor to the backend.

    `check` is called in between with what the model will take, and may refuse it.
    """
    backend.look_at(file)
    planner = backend.planner() if check is not None else None
    survey = survey_model(file, with_nextn=with_nextn, planner=planner)
    survey.weights.check()
    if check is not None:
        check(survey.inventory.demand(survey.model, backend))
    return prepare_model(survey, file, backend, with_nextn=with_nextn)


def prepare_model(
    survey: Survey, file: GgufFile, backend: Backend, *, with_nextn: bool = True
) -> Model:
    """What was surveyed, with its weights."""
    from .model_weights import Reporting, Weights

    empty, matrices = survey.model, survey.inventory.matrices
    backend.look_at(file)
    backend.expect(file, matrices)
    reporting = Weights(file, Reporting(backend, matrices))
    model = type(empty)(empty.hparams, reporting, with_nextn=with_nextn, share=empty.share)
    backend.weights_ready(file)
    return model


@dataclass(frozen=True, slots=True)
class Survey:
    """A model without numbers, what it would prepare, and what the file lacks for it."""

    model: Model
    inventory: Inventory
    weights: Weights  # `findings` has every fault, `check` raises them


def survey_model(
    file: GgufFile,
    *,
    with_nextn: bool = True,
    share: Share | None = None,
    planner: Backend | None = None,
) -> Survey:
    """`share`: of one rank only; what is not in it counts as missing nowhere. `planner`: what it is
    built on instead of nothing."""
    from .hparams import Hparams
    from .model_weights import Inventory, Weights

    model_class = _find_class(file)
    _refuse_head_only(file)
    inventory = Inventory(planner)
    weights = Weights(file, inventory)
    model = model_class(Hparams.from_gguf(file), weights, with_nextn=with_nextn, share=share)
    return Survey(model, inventory, weights)


def _find_class(file: GgufFile) -> type[Model]:
    name = file.metadata.architecture
    if name not in ARCHITECTURES:
        raise ModelError(
            f"{file.label}: architecture {name!r} is not supported (known: "
            f"{', '.join(ARCHITECTURES)})"
        )
    module, _, class_name = ARCHITECTURES[name].partition(":")
    found: type[Model] = getattr(import_module(f".{module}", __name__), class_name)
    return found


def add_heads(
    model: Model, file: GgufFile, backend: Backend, check: Callable[[Demand], None] | None = None
) -> None:
    """Give a model the MTP heads of a file that holds only these.

    `check` is called with what they will take, and may refuse them.
    """
    from .hparams import Hparams
    from .model import MTP
    from .model_weights import Inventory, Reporting, Weights

    model_class = _find_class(file)
    hparams = Hparams.from_gguf(file, model.hparams.n_vocab)
    _check_heads(file, hparams, model.hparams)
    backend.look_at(file)
    inventory = Inventory()
    weights = Weights(file, inventory)
    model_class.heads_over(model, hparams, weights)
    weights.check()
    if check is not None:
        check(inventory.demand(model, backend))
    backend.expect(file, inventory.matrices)
    reporting = Weights(file, Reporting(backend, inventory.matrices))
    model.add_drafter(MTP, *model_class.heads_over(model, hparams, reporting))
    backend.weights_ready(file)


def is_head_only(file: GgufFile) -> bool:
    """No model, but an MTP head for one."""
    n_nextn = file.metadata.int("nextn_predict_layers", 0)
    return n_nextn > 0 and not any(name.startswith("blk.0.") for name in file.tensors)


def _refuse_head_only(file: GgufFile) -> None:
    if is_head_only(file):
        raise ModelError(
            f"{file.label}: holds only an MTP head, not the model it belongs to; "
            "give that with -m, and this file with -md"
        )


def _check_heads(file: GgufFile, head: Hparams, model: Hparams) -> None:
    """Only what no missing tensor would show."""
    for what, here, there in (
        ("hidden rows are {} wide", head.n_embd, model.n_embd),
        ("vocabulary has {} rows", head.n_vocab, model.n_vocab),
    ):
        if here != there:
            raise ModelError(
                f"{file.label}: this MTP head belongs to another model: its {what.format(here)}, "
                f"the model's {there}"
            )
