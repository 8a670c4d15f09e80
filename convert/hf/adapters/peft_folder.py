"""A LoRA adapter as PEFT saves it: `adapter_config.json` beside `adapter_model.safetensors`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from glob import escape
from typing import Any, Final

from msgspec import Struct

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ...checkpoint import FilePlace, StoredTensor
from ...checkpoint.byte_source import ByteSource
from ...checkpoint.folder import read_json
from ...checkpoint.safetensors import read_tensors

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
_FACTOR: Final = re.compile(r"(?:base_model\.model\.)?(.+)\.lora_([AB])(?:\.[^.]+)?\.weight")
_SIZES: Final = {"r": "rank_pattern", "lora_alpha": "alpha_pattern"}
_WORDS: Final = re.compile(r"[\w.\-]*")
# Values that ask for nothing, of what changes more than products.
_PLAIN: Final[Mapping[str, tuple[object, ...]]] = {
    "use_dora": (None, False),
    "fan_in_fan_out": (None, False),
    "bias": (None, "none"),
    "modules_to_save": (None, []),
    "alora_invocation_tokens": (None, []),
    "trainable_token_indices": (None, [], {}),
}


class Factors(Struct, frozen=True):
    """Of one matrix: b @ a, times a scale."""

    a: StoredTensor  # (rank, n_in)
    b: StoredTensor  # (n_out, rank)
    scale: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]


class PeftAdapter(Struct):
    label: str
    base: str  # what it was trained for: a folder, or a repository
    factors: dict[str, Factors]  # by the stored name of the matrix, without `.weight`
    source: ByteSource

    def close(self) -> None:
        self.source.close()


def open_peft(place: FilePlace) -> PeftAdapter:
    """A ModelError says what of it has no place in a GGUF adapter."""
    names = place.names()
    for name in (CONFIG, WEIGHTS):
        if name not in names:
            more = " (.bin files can run code when read: save it as safetensors)"
            is_pickled = name == WEIGHTS and any(each.endswith(".bin") for each in names)
            raise ModelError(f"{place.label} has no {name}{more if is_pickled else ''}")
    config = read_json(place, CONFIG)
    _check_config(config, place.label)
    source = place.open(WEIGHTS)
    try:
        tensors, _ = read_tensors(source)
        factors = _pair(tensors, config, place.label)
    except BaseException:
        source.close()
        raise
    base = config.get("base_model_name_or_path")
    return PeftAdapter(place.label, base if isinstance(base, str) else "", factors, source)


def _check_config(config: Mapping[str, Any], label: str) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise ModelError(f"{label}: peft_type {printable(kind)} is not LORA")
    for name, plain in _PLAIN.items():
        if config.get(name) not in plain:
            raise ModelError(
                f"{label}: {name} {printable(config[name])} changes more than products of "
                "matrices, which a GGUF adapter cannot say; merge it into the checkpoint"
            )


def _pair(
    tensors: Mapping[str, StoredTensor], config: Mapping[str, Any], label: str
) -> dict[str, Factors]:
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        match = _FACTOR.fullmatch(name)
        if match is None:
            raise ModelError(
                f"{label}: tensor {printable(name)} is no factor of a matrix (lora_A, lora_B); "
                "merge the adapter into the checkpoint"
            )
        found.setdefault(match[1], {})[match[2]] = tensor
    if not found:
        raise ModelError(f"{label}: {WEIGHTS} has no tensors")
    return {name: _factors(name, both, config, label) for name, both in found.items()}


def _factors(
    name: str, both: Mapping[str, StoredTensor], config: Mapping[str, Any], label: str
) -> Factors:
    if len(both) < 2:
        raise ModelError(f"{label}: {printable(name)} has one of lora_A and lora_B alone")
    a, b = both["A"], both["B"]
    if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or not a.shape[0]:
        raise ModelError(
            f"{label}: {printable(name)} has factors of shapes {b.shape} and {a.shape}, which do "
            "not go together"
        )
    alpha, rank = (_size(name, key, config, label) for key in ("lora_alpha", "r"))
    if rank != a.shape[0]:
        raise ModelError(f"{label}: {printable(name)} has rank {a.shape[0]}, and {CONFIG} {rank}")
    return Factors(a, b, alpha / (rank**0.5 if config.get("use_rslora") is True else rank))


def _size(name: str, key: str, config: Mapping[str, Any], label: str) -> float:
    """Of a module: what a pattern says of it, else the one for all."""
    value = config.get(key)
    patterns = config.get(_SIZES[key]) or {}
    for pattern, own in patterns.items() if isinstance(patterns, Mapping) else ():
        if _matches(pattern, name, label):
            value = own
            break
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise ModelError(f"{label}: {CONFIG}: {key} {printable(value)} cannot be")
    return float(value)


def _matches(pattern: str, name: str, label: str) -> bool:
    """As PEFT matches keys of patterns: a regular expression of the end of a name. Only `^`, `$`,
    `\\.` and `.*` are read: other expressions can take years."""
    text = pattern.removesuffix("$").replace("\\.", ".")
    starts = text.startswith("^")
    pieces = text.removeprefix("^").split(".*")
    if not all(_WORDS.fullmatch(piece) for piece in pieces):
        raise ModelError(
            f"{label}: {CONFIG}: the pattern {printable(pattern)} has more than names of modules, "
            "`^`, `$` and `.*`; write the names out"
        )
    wanted = "*".join(map(escape, pieces))
    return fnmatchcase(name, wanted) or (not starts and fnmatchcase(name, f"*.{wanted}"))
