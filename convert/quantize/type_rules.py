"""Rules by tensor name: `ffn_down=q6_k`, `0-3,last2:attn_=q8_0`, `^output=keep`.

`nextn=q8_0` is for an MTP head: all tensors of its blocks.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from msgspec import Struct

from ...core.errors import ConfigError
from ...core.gguf.printable import printable
from ...core.gguf.quants import BlockFormat, find_format
from .model_facts import layer_of
from .native_quantizer import QUANTISED

KEEP = "keep"
HEAD = "nextn"
TARGETS = (*QUANTISED, "F16", "BF16", "F32")
_LAYERS = re.compile(r"((?:\d+(?:-\d*)?|last\d+)(?:,(?:\d+(?:-\d*)?|last\d+))*):(.+)", re.DOTALL)


class TypeRule(Struct, frozen=True):
    """The first rule of a list that fits a tensor decides."""

    text: str  # as it was given
    pattern: re.Pattern[str]
    layers: tuple[str, ...]  # all if there are none
    type: str  # or KEEP

    @property
    def is_of_head(self) -> bool:
        return self.pattern.pattern == HEAD

    def fits(self, name: str, n_layers: int, heads: Collection[int] = ()) -> bool:
        """`heads`: the blocks of MTP heads."""
        layer = layer_of(name)
        if self.layers and (
            layer is None or not any(_holds(part, layer, n_layers) for part in self.layers)
        ):
            return False
        return bool(self.pattern.search(name)) or (self.is_of_head and layer in heads)


def _holds(part: str, layer: int, n_layers: int) -> bool:
    """`3`, `0-7`, `24-` and `last4`."""
    if part.startswith("last"):
        return layer >= n_layers - int(part[4:])
    first, dash, last = part.partition("-")
    if not dash:
        return layer == int(first)
    return int(first) <= layer and (not last or layer <= int(last))


def parse_rule(text: str) -> TypeRule:
    head, _, kind = text.rpartition("=")
    if not head or not kind:
        raise ConfigError(f"--tensor-type {printable(text)} is not NAME=TYPE, as in ffn_down=q6_k")
    layers: tuple[str, ...] = ()
    if found := _LAYERS.fullmatch(head):
        layers, head = tuple(found[1].split(",")), found[2]
    try:
        pattern = re.compile(head)
    except re.error as error:
        raise ConfigError(
            f"--tensor-type {printable(text)}: {printable(head)} is no regular expression: {error}"
        ) from None
    if kind.lower() == KEEP:
        return TypeRule(text, pattern, layers, KEEP)
    name = target_type(kind, f"--tensor-type {printable(text)}").name
    return TypeRule(text, pattern, layers, name)


def read_rules(path: Path) -> list[TypeRule]:
    """One rule a line or a word, as llama-quantize has them; `#` begins a remark."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not a text file of rules such as ffn_down=q6_k") from None
    return [parse_rule(word) for line in lines for word in line.partition("#")[0].split()]


def target_type(name: str, option: str) -> BlockFormat:
    """`option` is named in the error."""
    if name.upper() not in TARGETS:
        known = ", ".join(kind.lower() for kind in TARGETS)
        raise ConfigError(f"{option}: no quantiser for {printable(name)}; choose one of {known}")
    return find_format(name)
