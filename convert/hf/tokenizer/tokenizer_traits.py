"""What the files of a family's tokenizer do not say, or say in a way of their own."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field


class TokenizerTraits(Struct, frozen=True):
    model: str = ""  # tokenizer.ggml.model, where it is another one than the files look like
    pre: str = ""  # of several names for the same cuts, and where no file has the cuts
    # Texts of special tokens by their names in `special_keys`: more than a checkpoint names.
    specials: Mapping[str, str] = field(default_factory=dict)
    shown: frozenset[str] = frozenset()  # control tokens that readers are to write out


USUAL = TokenizerTraits()
GLM = TokenizerTraits(
    pre="glm4",
    specials={
        "bos": "[gMASK]", "unk": "<|endoftext|>", "eot": "<|user|>", "eom": "<|observation|>",
    },
)  # fmt: skip
GEMMA4 = TokenizerTraits(
    model="gemma4",
    shown=frozenset(
        ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>",
         "<tool_response|>", '<|"|>')
    ),
)  # fmt: skip
