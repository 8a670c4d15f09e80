"""The tokenizer that was written against the original: do both say the same ids?"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from ....core.errors import ModelError, NextnError
from ....core.gguf.printable import printable
from ....core.tokenizer import load_tokenizer
from .pre import PROBE

TEXTS: Final = (
    *PROBE.split("\n"),
    PROBE,
    "The quick brown fox jumps over the lazy dog. 0123456789",
    "def f(x):\n    return [i ** 2 for i in range(x) if i % 3 == 0]\n",
    '{"name": "value", "list": [1, 2, 3], "nested": {"a": null}}',
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<s>[INST] Hello [/INST] </s>",
)


def compare(metadata: Mapping[str, Any], definition: str, label: str) -> list[str]:
    """Notes: nothing where all agree. A tokenizer that cannot be loaded is an error."""
    from tokenizers import Tokenizer

    try:
        ours = load_tokenizer(metadata)
    except NextnError as error:
        raise ModelError(
            f"{label}: its tokenizer would not load from a GGUF file: {error}"
        ) from None
    texts = [unicodedata.normalize("NFC", text) for text in TEXTS if text]
    try:
        original = Tokenizer.from_str(definition)
        theirs = [original.encode(text, add_special_tokens=False).ids for text in texts]
    except BaseException as error:
        # The library raises nothing more specific, and where it breaks nothing of Python's.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return [f"tokenizer.json could not be tried ({printable(str(error))})"]
    wrong = [
        text
        for text, ids in zip(texts, theirs, strict=True)
        if ids != ours.encode(text, add_special=False)
    ]
    if not wrong:
        return []
    return [
        f"tokenizer: {len(wrong)} of {len(texts)} probe texts get other ids than from "
        f"tokenizer.json, for example {printable(min(wrong, key=len))}"
    ]
