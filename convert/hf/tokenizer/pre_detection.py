"""`tokenizer.ggml.pre`: which of the known ways of cutting text tokenizer.json has, and whether the
written tokenizer gives the ids of the original.

llama.cpp's converter recognises tokenizers by a hash of the ids of a probe text. Here the pieces
that a probe text is cut into are compared with those of every name, which works for new
vocabularies as well.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

from ....core.errors import ModelError, NextnError
from ....core.gguf.printable import printable
from ....core.tokenizer import load_tokenizer
from ....core.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer, find_pre_tokenizer
from .vocab_files import TokenizerFiles

PLAIN_PROBE: Final = (
    "Hello world, I'm here. I'LL go; don't! She'Re it's WE'VE 'd x'S y'tis\n\n\n  two  spaces   "
    "and\ttabs\t\t"
    "1 12 123 1234 12345 1234567 3.14 v2.0 0x1F\r\n\r\nCamelCase HTMLParser getURL2Path snake_case "
    "if (a[i] != b->c) { return x+=1; } // done\n/* !! */\n## a/b//c\n=== ?!\n"
    "/// <|x|> $100 <=>^~|`@&%\n"
    "\n \n  \n    indented\n\t\tmore   \n   end of text.  a.B,c (d) [e] {f} \"g\" 'h' .x ..y _z  "
)
PROBE: Final = (
    PLAIN_PROBE
    + "你好,世界。漢字かな交じり文カタカナ ひらがな。 한국어 텍스트,안녕 Привет мир Ελληνικά "
    + "हिन्दी नमस्ते ภาษาไทย cafe\u0301 na\u00efve \u00c9cole שלום العربية ٣٤٥ ①② ½ "
    + "😀👍🏽 👨\u200d👩\u200d👧 …—“quoted” «x» ，。！？（全角）ＡＢＣ１２３ "
    + "\u3000wide\u00a0nbsp ㄅㄆ "
    + "§¶† €5 x² H₂O ∑∫ → ★ a\u0308b  "
)
TEXTS: Final = (
    *PROBE.split("\n"),
    PROBE,
    "The quick brown fox jumps over the lazy dog. 0123456789",
    "def f(x):\n    return [i ** 2 for i in range(x) if i % 3 == 0]\n",
    '{"name": "value", "list": [1, 2, 3], "nested": {"a": null}}',
    "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n",
    "<s>[INST] Hello [/INST] </s>",
)
# llama.cpp's splitters for these know letters beyond ASCII differently from their tokenizer.json.
_ENCODER: Final = "granite-embed-multi-97m"  # cuts as gpt-4o's tokenizer.json, but is not meant
_APPROXIMATE: Final = ("gpt-4o", "tekken", "kimi-k2", "deepseek-coder", "deepseek-llm", "youtu")


def choose_pre(files: TokenizerFiles, forced: str | None, usual: str, notes: list[str]) -> str:
    """`usual`: what the family calls it, if that cuts as the file says."""
    if forced is not None:
        find_pre_tokenizer(forced)  # raises on an unknown name
        return forced
    definition = files.definition.get("pre_tokenizer")
    ignores = bool(files.model.get("ignore_merges", False))
    wanted = _pieces(_parsed(definition, files), PROBE)
    rules = {n: rule for n, rule in PRE_TOKENIZERS.items() if rule.reads_bytes and n != _ENCODER}
    if names := [name for name, rule in rules.items() if _cut(rule, PROBE) == wanted]:
        if usual in names:
            return usual
        return next((n for n in names if PRE_TOKENIZERS[n].ignore_merges == ignores), names[0])
    wanted = _pieces(_parsed(definition, files), PLAIN_PROBE)
    for name in sorted(_APPROXIMATE, key=lambda name: name != usual):
        if _cut(PRE_TOKENIZERS[name], PLAIN_PROBE) == wanted:
            notes.append(
                f"pre-tokenizer {name}: in GGUF it cuts some texts beyond ASCII differently"
            )
            return name
    raise ModelError(
        f"{files.label}: tokenizer.json cuts text in a way that none of the known pre-tokenizers "
        "does; if you know which is meant, say --pre NAME (qwen2, llama-bpe, gpt-2, ...)"
    )


def _parsed(definition: Any, files: TokenizerFiles) -> Any:
    """The library's own object. A space in front of the text is not part of the cutting."""
    from tokenizers import Tokenizer

    if definition is None:
        raise files.error("tokenizer.json", "a byte-level model without a pre-tokenizer")
    text = json.dumps(
        {"version": "1.0", "added_tokens": [], "pre_tokenizer": _without_prefix(definition),
         "model": {"type": "BPE", "vocab": {}, "merges": []}}
    )  # fmt: skip
    try:
        return Tokenizer.from_str(text).pre_tokenizer
    except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
        raise files.error("tokenizer.json", f"its pre-tokenizer: {str(error)[:120]}") from None


def _without_prefix(part: Any) -> Any:
    if isinstance(part, dict):
        out = {key: _without_prefix(value) for key, value in part.items()}
        if out.get("type") == "ByteLevel":
            out = {"use_regex": True, "trim_offsets": True} | out | {"add_prefix_space": False}
        return out
    return [_without_prefix(each) for each in part] if isinstance(part, list) else part


def _pieces(pre_tokenizer: Any, text: str) -> list[str]:
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]


def _cut(rule: PreTokenizer, text: str) -> list[str]:
    from tokenizers import Regex, pre_tokenizers

    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rule.patterns]
    to_chars = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return _pieces(pre_tokenizers.Sequence([*cuts, to_chars]), text)


def compare_tokenizers(metadata: Mapping[str, Any], definition: str, label: str) -> list[str]:
    """Notes on probe texts that get other ids than from `definition`. A tokenizer that cannot be
    loaded is an error."""
    from tokenizers import Tokenizer

    try:
        ours = load_tokenizer(metadata)
    except NextnError as error:
        what = f"its tokenizer would not load from a GGUF file: {error}"
        raise ModelError(f"{label}: {what}") from None
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
