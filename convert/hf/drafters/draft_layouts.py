"""The drafters that can be converted: a row for each class that config.json may name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ...checkpoint import ModelCheckpoint
from .assistant_layout import ASSISTANT
from .dflash_layout import DFLASH, DSPARK, DSPARK_GEMMA4
from .draft_layout import DraftLayout
from .eagle3_layout import EAGLE3, EAGLE3_LATENT

LAYOUTS: Final = MappingProxyType(
    {
        "LlamaForCausalLMEagle3": EAGLE3,
        "Eagle3LlamaForCausalLM": EAGLE3,
        "Eagle3Speculator": EAGLE3,
        "Eagle3DraftModel": EAGLE3,
        "Qwen3Eagle3Model": EAGLE3,
        "Eagle3DeepseekV2ForCausalLM": EAGLE3_LATENT,
        "DFlashDraftModel": DFLASH,
        "DFlash2DraftModel": DFLASH,
        "DFlashSpeculator": DFLASH,
        "MuseGlimmerAssistantModel": DFLASH,
        "Qwen3DSparkModel": DSPARK,
        "DSparkDraftModel": DSPARK,
        "DSparkSpeculator": DSPARK,
        "Lfm2DSparkDraftModel": DSPARK,
        "LingDSparkModel": DSPARK,
        "Gemma4DSparkModel": DSPARK_GEMMA4,
        "Gemma4AssistantForCausalLM": ASSISTANT,
        "Gemma4UnifiedAssistantForCausalLM": ASSISTANT,
    }
)
_BY_SPECULATORS: Final = {"eagle3": EAGLE3, "dflash": DFLASH, "dspark": DSPARK}
_REFUSED: Final = {
    "DeepseekV4DSparkModel": "its layers are DeepSeek V4's, with hyper-connections",
    "Gemma4Eagle3Model": "its layer is Gemma 4's, for which GGUF's EAGLE3 has no tensors",
    "PEagleDraftModel": "GGUF has no architecture for P-EAGLE",
    "DominoDraftModel": "GGUF has no tensors for Domino's recurrent head",
}
_WORDS: Final = ("eagle", "dflash", "dspark", "speculator", "domino")  # of classes of drafters


def find_draft_layout(checkpoint: ModelCheckpoint) -> DraftLayout | None:
    """None for a model. Raises ModelError for drafters that cannot be converted."""
    config, label = checkpoint.config, checkpoint.label
    name, kind = class_of(config), config.get("speculators_model_type")
    if name in _REFUSED:
        raise ModelError(f"{label}: drafter {name} cannot be converted: {_REFUSED[name]}")
    if found := LAYOUTS.get(name):
        return found
    if kind is not None:
        if isinstance(kind, str) and kind in _BY_SPECULATORS:
            return _BY_SPECULATORS[kind]
        raise ModelError(
            f"{label}: speculators_model_type is {printable(kind)}; "
            f"{', '.join(_BY_SPECULATORS)} can be converted"
        )
    if any(word in name.lower() for word in _WORDS):
        raise ModelError(
            f"{label}: drafter {printable(name)} cannot be converted (known: {', '.join(LAYOUTS)})"
        )
    is_eagle3 = config.get("draft_vocab_size") and config.get("num_hidden_layers") == 1
    return EAGLE3 if is_eagle3 else None  # under the class of its layer


def refuse_drafter(checkpoint: ModelCheckpoint) -> None:
    """For what takes an MTP head out of a checkpoint."""
    if (layout := find_draft_layout(checkpoint)) is not None:
        raise ModelError(
            f"{checkpoint.label} holds {layout.words}, no MTP head: spec convert hf makes a file "
            "of it, which -md takes beside its model"
        )


def class_of(config: Mapping[str, Any]) -> str:
    match config.get("architectures"):
        case [str(name), *_]:
            return name
    return ""
