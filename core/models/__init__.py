"""Model architectures: one row each, and the function that builds a model from a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from ..errors import ModelError
from .adapters import AdaptingPreparer
from .drafters import NETWORKS
from .drafters.foreign_names import is_draft_dialect

if TYPE_CHECKING:
    from ..backend.interface import Backend
    from ..backend.layers import StateShape
    from ..gguf.reader import GgufFile
    from .adapters import AdapterSet
    from .demand import Demand
    from .drafters.network import DraftNetwork
    from .hparams import Hparams
    from .layout import Layout
    from .model import Model, Share
    from .model_weights import Inventory, Preparer, Weights

ARCHITECTURES = {
    "bailingmoe2": "bailingmoe2:BailingMoe2",
    "cohere2": "cohere2:Cohere2",
    "deepseek2": "deepseek2:DeepSeek2",
    "ernie4_5": "llama:Llama",
    "ernie4_5-moe": "ernie4_5_moe:Ernie45Moe",
    "exaone4": "exaone4:Exaone4",
    "exaone-moe": "exaone_moe:ExaoneMoe",
    "falcon-h1": "falcon_h1:FalconH1",
    "gemma2": "gemma2:Gemma2",
    "gemma3": "gemma3:Gemma3",
    "gemma4": "gemma4:Gemma4",
    "glm4": "glm4:Glm4",
    "glm4moe": "glm4moe:Glm4Moe",
    "gpt-oss": "gpt_oss:GptOss",
    "granite": "granite:Granite",
    "granitehybrid": "granite_hybrid:GraniteHybrid",
    "granitemoe": "granite:Granite",
    "hunyuan-dense": "hunyuan:Hunyuan",
    "hunyuan-moe": "hunyuan:Hunyuan",
    "kimi-linear": "kimi_linear:KimiLinear",
    "lfm2": "lfm2:Lfm2",
    "lfm2moe": "lfm2:Lfm2",
    "llama": "llama:Llama",
    "llama4": "llama4:Llama4",
    "mamba2": "mamba2:Mamba2",
    "mimo2": "mimo2:MiMo2",
    "mistral3": "llama:Llama",
    "nemotron_h": "nemotron_h:NemotronH",
    "nemotron_h_moe": "nemotron_h:NemotronH",
    "olmo2": "olmo2:Olmo2",
    "phi3": "phi3:Phi3",
    "qwen2": "qwen2:Qwen2",
    "qwen2moe": "qwen2moe:Qwen2Moe",
    "qwen2vl": "qwen2:Qwen2",
    "qwen3": "qwen3:Qwen3",
    "qwen3moe": "qwen3moe:Qwen3Moe",
    "qwen3vl": "qwen3:Qwen3",
    "qwen3vlmoe": "qwen3moe:Qwen3Moe",
    "qwen3next": "qwen3next:Qwen3Next",
    "qwen35": "qwen35:Qwen35",
    "qwen35moe": "qwen35moe:Qwen35Moe",
    "seed_oss": "seed_oss:SeedOss",
    "smollm3": "smollm3:SmolLm3",
    "step35": "step35:Step35",
}


def build_model(
    file: GgufFile,
    backend: Backend,
    check: Callable[[Demand], None] | None = None,
    *,
    with_nextn: bool = True,
    adapters: AdapterSet | None = None,
) -> Model:
    """Check the whole file against its architecture, then hand every tensor to the backend.

    `check` is called in between with what the model will take, and may refuse it. `adapters`: what
    is added to its products.
    """
    backend.begin_file(file)
    planner = backend.planner() if check is not None else None
    survey = survey_model(file, with_nextn=with_nextn, planner=planner, adapters=adapters)
    survey.weights.check()
    if check is not None:
        from .demand import Demand

        check(Demand.of(survey.model, survey.inventory, backend))
    return prepare_model(survey, file, backend, with_nextn=with_nextn, adapters=adapters)


def for_context(file: GgufFile, n_ctx: int | None) -> GgufFile:
    """See `Model.for_context`. None: no context was asked for."""
    name = file.metadata.architecture
    if n_ctx is None or name not in ARCHITECTURES:
        return file
    model_class: type[Model] = _load(ARCHITECTURES[name], __name__)
    return model_class.for_context(file, n_ctx)


def prepare_model(
    survey: Survey,
    file: GgufFile,
    backend: Backend,
    *,
    with_nextn: bool = True,
    adapters: AdapterSet | None = None,
) -> Model:
    """What was surveyed, with its weights."""
    from .model_weights import Reporting, Weights

    empty, matrices = survey.model, survey.inventory.matrices
    backend.begin_file(file)
    backend.expect(file, matrices)
    preparer: Preparer = Reporting(backend, matrices)
    if adapters is not None:
        preparer = AdaptingPreparer(preparer, adapters)
    weights = Weights(file, preparer)
    model = type(empty)(empty.hparams, weights, with_nextn=with_nextn, share=empty.share)
    model.adapters = adapters
    backend.weights_ready(file)
    return model


class Survey(Struct, frozen=True):
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
    adapters: AdapterSet | None = None,
) -> Survey:
    """`share`: of one rank only; what is not in it counts as missing nowhere. `planner`: what it is
    built on instead of nothing. `adapters`: of which every tensor has to be one that can be added
    to."""
    from .hparams import Hparams
    from .model_weights import Inventory, Weights

    model_class = _find_class(file)
    _refuse_head_only(file)
    inventory = Inventory(planner)
    adapting = None if adapters is None else AdaptingPreparer(inventory, adapters)
    weights = Weights(file, adapting or inventory)
    model = model_class(Hparams.from_gguf(file), weights, with_nextn=with_nextn, share=share)
    if adapting is not None:
        adapting.check_used(file, model.hparams.n_layers)
    return Survey(model, inventory, weights)


def _find_class(file: GgufFile) -> type[Model]:
    name = file.metadata.architecture
    if name in NETWORKS or is_draft_dialect(name):
        raise ModelError(
            f"{file.label}: holds a drafter ({name}) for another model; give that with -m, and "
            "this file with -md"
        )
    if name not in ARCHITECTURES:
        raise ModelError(
            f"{file.label}: architecture {name!r} cannot be run (those that can: "
            f"{', '.join(ARCHITECTURES)}); spec convert inspect, attach, extract and quantize work "
            "on it all the same"
        )
    found: type[Model] = _load(ARCHITECTURES[name], __name__)
    return found


def _load(row: str, package: str) -> Any:
    """The class of a table's row."""
    module, _, class_name = row.partition(":")
    return getattr(import_module(f".{module}", package), class_name)


def add_networks(
    model: Model, file: GgufFile, backend: Backend, check: Callable[[Demand], None] | None = None
) -> None:
    """Give a model the draft networks of a file that holds only these.

    `check` is called with what they will take, and may refuse them.
    """
    from .model_weights import Reporting, Weights

    name, build = _network_builder(model, file)
    backend.begin_file(file)
    inventory, _ = plan_networks(model, file)
    if check is not None:
        from .demand import Demand

        check(Demand.of(model, inventory, backend))
    backend.expect(file, inventory.matrices)
    model.add_drafter(name, *build(Weights(file, Reporting(backend, inventory.matrices))))
    backend.weights_ready(file)


def plan_networks(model: Model, file: GgufFile) -> tuple[Inventory, StateShape]:
    """What `add_networks` would prepare, and the state that would join the model's; a ModelError if
    they are not networks for the model."""
    from .model_weights import Inventory, Weights

    inventory = Inventory()
    weights = Weights(file, inventory)
    _, layout = _network_builder(model, file)[1](weights)
    weights.check()
    return inventory, layout.behind(model.layout)


Built: TypeAlias = tuple["Sequence[DraftNetwork]", "Layout"]


def _network_builder(model: Model, file: GgufFile) -> tuple[str, Callable[[Weights], Built]]:
    """The drafter's name, and what makes its networks with the layout of model and networks."""
    from .hparams import Hparams
    from .model import ENDS, MTP

    arch = file.metadata.architecture
    if arch in NETWORKS:
        network_class = _load(NETWORKS[arch], f"{__name__}.drafters")

        def build(weights: Weights) -> Built:
            layout = model.layout.copy()
            return [network_class(model, weights, layout)], layout

        return arch, build
    model_class = _find_class(file)
    hparams = Hparams.from_gguf(file, model.hparams.n_vocab)
    _check_heads(file, hparams, model.hparams)

    def build_heads(weights: Weights) -> Built:
        heads = model_class(hparams, weights, share=ENDS, trunk=model)
        return heads.nextn, heads.layout

    return MTP, build_heads


def network_of(file: GgufFile) -> str | None:
    """The drafter whose networks the file holds, and nothing else; None: it is a whole model."""
    from .model import MTP

    if file.metadata.architecture in NETWORKS:
        return file.metadata.architecture
    return MTP if is_head_only(file) else None


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
