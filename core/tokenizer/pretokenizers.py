"""How each `tokenizer.ggml.pre` cuts text before byte-level BPE merges it.

A rule is a list of patterns for Oniguruma (the engine inside `tokenizers`). Each cuts the pieces
that the one before left; what a pattern does not match stays a piece of its own. The patterns
follow llama.cpp's use of these names, not the original tokenizer.json: contractions
ignore the case of ASCII letters only, and where llama.cpp knows no upper and lower case beyond
ASCII (gpt-4o, tekken), neither do we. `tests/core/tokenizer/test_peer.py` compares them.
"""

from __future__ import annotations

import difflib

from msgspec import Struct

from ..errors import ModelError


class PreTokenizer(Struct, frozen=True):
    """The cuts of one name, and the flags that llama.cpp ties to it."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a piece that is a token is taken whole
    add_bos: bool = False  # the default; the file's own flag wins
    reads_bytes: bool = True  # else characters are merged, and `<0xXX>` stands for a byte
    marks_spaces: bool = False  # U+2581 for each space
    drops_spaces: bool = False  # the patterns match what is left out
    is_gemma: bool = False  # newlines that are a token are taken whole; the model needs BOS


def _chars(ranges: str) -> str:
    """Hexadecimal code points and ranges as the inside of a character class."""
    return "".join(
        "-".join(rf"\x{{{code}}}" for code in item.split("-")) for item in ranges.split()
    )


_SUFFIX = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_WORD = _LEAD + r"\p{L}+"
_MARKED_WORD = _LEAD + r"[\p{L}\p{M}]+"
_PUNCT = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PUNCT_SLASH = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TO_THREE = r"\p{N}{1,3}"
_LINE_RUNS = r"[^\n]+|\n+"
_SPACE = r"\s+(?!\S)|\s+"
_LINES = r"\s*[\r\n]+|" + _SPACE

# Upper-case letters, then lower-case ones; a letter beyond ASCII counts as both.
_CASED = _LEAD + r"[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+"
_CASED_REST = _LEAD + r"[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCT}|{_LINES}"
_QWEN2 = rf"{_SUFFIX}|{_WORD}|\p{{N}}|{_PUNCT}|{_LINES}"
_QWEN35 = rf"{_SUFFIX}|{_MARKED_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_LINES}"
_DEEPSEEK_WORD = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"
_DEEPSEEK3 = rf"{_DEEPSEEK_WORD}[\r\n]*|{_LINES}"
_SPARK = rf"{_DEEPSEEK_WORD}|[\r\n]|{_SPACE}"
_EXAONE_MOE = (
    rf"{_SUFFIX}|{_LEAD}(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]?|\s*[\r\n]|{_SPACE}"
)
_GPT4O = (
    rf"{_CASED}(?:{_SUFFIX})?|{_CASED_REST}(?:{_SUFFIX})?|\p{{N}}{{1,3}}|{_PUNCT_SLASH}|{_LINES}"
)
_GRANITE = _GPT4O.replace(r"[\p{L}&&", r"[\p{L}\p{M}&&")
_TEKKEN = rf"{_CASED}|{_CASED_REST}|\p{{N}}|{_PUNCT_SLASH}|{_LINES}"
_YOUTU = rf"{_MARKED_WORD}(?:{_SUFFIX})?|\p{{N}}|{_PUNCT_SLASH}|{_LINES}"
_AYA = rf"{_MARKED_WORD}(?:{_SUFFIX})?|\p{{N}}{{1,3}}|{_PUNCT_SLASH}|{_LINES}"
_HAN = _chars("4E00-9FFF 3400-4DBF 20000-2A6DF 2A700-2EBEF F900-FAFF 2F800-2FA1F")
_KIMI = rf"[{_HAN}]+|{_LEAD}[\p{{L}}&&[^{_HAN}]]+(?:{_SUFFIX})?|\p{{N}}{{1,3}}|{_PUNCT}|{_LINES}"
_QWEN2_PLAIN = rf"{_WORD}|\p{{N}}|{_PUNCT}|{_LINES}"  # without contractions
_POWERS = "|".join(rf"\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))
# Pieces of spaces are short here, and each would look through the rest of the run for a newline.
# None is there if a piece before, which ends in such a space, found none.
_JAIS2_LINES = r"(?<![^\S\r\n])\s*[\r\n]+"
_JAIS2 = rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_PUNCT}|{_JAIS2_LINES}|{_POWERS}|\s{{1,2}}(?!\S)|\s"
_SEED = rf"{_SUFFIX}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+|{_LINES}"
_MINICPM5 = rf"{_SUFFIX}|{_WORD}|\p{{N}}+|{_PUNCT}|{_LINES}"
_SENTENCE = rf" ?[^(\s|.,!?){_chars('2026 3002 FF0C 3001 964 6D4 60C')}]+"

_CJK = "[" + _chars("4E00-9FA5 800-1FFF 200B-2027 202A-202E 2030-205E 2060-2FFF 3001-4E00")
_CJK += _chars("AC00-D7FF") + "&&[^\\s]]+"
_KANA = "[" + _chars("4E00-9FA5 3040-309F 30A0-30FF") + "]+"
# 8C48 is what became of F900 in llama.cpp.
_ASIAN = "[" + _chars("4E00-9FFF 3400-4DBF 8C48-FAFF 3040-309F 30A0-30FF FF65-FF9F 2F00-2FDF")
_ASIAN += _chars("E40-E7F E80-EFF 1780-17FF 1000-109F AA60-AA7F A9E0-A9FF AC00-D7AF 1100-11FF")
_ASIAN += "]+"
_YOUTU_ASIAN = "|".join(
    f"[{_chars(ranges)}]+"
    for ranges in (
        "AC00-D7A3 3131-318E",
        "FF01 2026 201C 201D 2018 2019 2014 FF1A FF1B FF0C 3001-303F FE30-FE4F",
        "3105-312F",
        "4E00-9FA5 3040-309F 30A0-30FF",
    )
)

# The letters that deepseek-llm joins into words: those of scripts that have a case.
_CASED_SCRIPTS = _chars(
    "41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376 377 37B-37D 37F 386"
    " 388-38A 38C 38E-3A1 3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD"
    " 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A 1E00-1F15 1F18-1F1D 1F20-1F45"
    " 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4"
    " 1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115"
    " 2119-211D 2124 2126 2128 212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183 2184"
    " 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2 2CF3 A640-A66D A680-A69B A722-A76F A771-A787"
    " A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3"
    " 104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943"
)
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"\s?[{_CASED_SCRIPTS}]+",
    rf"\s?[!-/:-~{_chars('FF01-FF0F FF1A-FF5E 2018-201F 3001-3002')}]+",
    # llama.cpp has `\s+$`, which is quadratic in spaces that are not the last: every one of
    # them is tried as a start. Only the first can succeed.
    r"(?<!\s)\s+\z",
    _CJK,
    r"\p{N}+",
)

# Digits in threes from the right of a run. With the first of them go all characters in front, as
# in llama.cpp: the cuts that follow see both.
_THREES = (
    r"(?<=\p{N})\p{N}{3}"
    r"|(?<!\P{N})\P{N}*+\p{N}{1,3}?(?=(?>(?:\p{N}{3})*)(?!\p{N}))"
)
# Cuts where a multiple of three ASCII digits is left of a run. Behind a cut the next one is three
# digits on or, if the run is over, wherever the next run has its first.
_SUPER_THREES = r"(?<=[0-9])[0-9]{3}(?=[0-9])|\G\p{N}+?(?=(?>(?:[0-9]{3})+)(?![0-9]))"
_CHAMELEON = (
    "<sentinel:[0-9]+>",
    "IMGIMG[A-I]{1,4}Z",
    r"[\t\n]|    |  ",
    r"\p{N}",
    r"[\p{P}!-/:-@\[-`{-~]",
    _GPT2,
)

_ROWS: tuple[tuple[str, PreTokenizer], ...] = (
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    ("glm4 glm5", PreTokenizer((_LLAMA3,), ignore_merges=True)),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
    (
        "qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2"
        " bailingmoe bailingmoe2 llada-moe",
        PreTokenizer((_QWEN2,)),
    ),
    ("ufakzeka", PreTokenizer((_QWEN2_PLAIN,))),
    ("laguna", PreTokenizer((_LINE_RUNS, _QWEN2))),
    ("jais-2", PreTokenizer((_JAIS2,))),
    ("qwen35", PreTokenizer((_QWEN35,))),
    ("deepseek-llm", PreTokenizer(_DEEPSEEK_LLM)),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", PreTokenizer((_TO_THREE, _KANA, _DEEPSEEK3))),
    ("spark2_5", PreTokenizer((_TO_THREE, _KANA, _SPARK, r"\p{N}"))),
    ("afmoe", PreTokenizer((_THREES, _ASIAN, _DEEPSEEK3))),
    (
        "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 mpt olmo jais trillion granite-docling"
        " jina-es jina-de jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe modern-bert",
        PreTokenizer((_GPT2,)),
    ),
    (
        "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
        PreTokenizer((r"\p{N}", _GPT2)),
    ),
    ("falcon", PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9]{3}"))),
    ("default", PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9]{3}"))),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,))),
    ("granite-embed-multi-97m", PreTokenizer((_GRANITE,), ignore_merges=True)),
    ("tiny_aya cohere2moe", PreTokenizer((_THREES, _AYA))),
    ("superbpe", PreTokenizer((r"\p{N}+", _SUPER_THREES))),
    ("chameleon", PreTokenizer(_CHAMELEON, add_bos=True)),
    ("tekken", PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True)),
    ("kimi-k2", PreTokenizer((_KIMI,))),
    ("exaone-moe", PreTokenizer((_EXAONE_MOE,))),
    ("youtu", PreTokenizer((_YOUTU_ASIAN, _YOUTU), ignore_merges=True)),
    ("seed-coder", PreTokenizer((_SEED,))),
    ("minicpm5", PreTokenizer((_TO_THREE, _MINICPM5), ignore_merges=True)),
    ("poro-chat bloom gpt3-finnish", PreTokenizer((_SENTENCE,))),
    ("viking", PreTokenizer((_SENTENCE, r"\p{N}"))),
    (
        "gemma4 granite-embed-multi-311m",
        PreTokenizer((_LINE_RUNS,), reads_bytes=False, marks_spaces=True, is_gemma=True),
    ),
    ("sarvam-moe", PreTokenizer((_LINE_RUNS,), reads_bytes=False, marks_spaces=True)),
    ("whitespace", PreTokenizer((r"\s+",), reads_bytes=False, drops_spaces=True)),
)
PRE_TOKENIZERS = {name: rule for names, rule in _ROWS for name in names.split()}


def find_pre_tokenizer(name: str) -> PreTokenizer:
    """A wrong guess would cost quality and show nowhere, so an unknown name is refused."""
    if name in PRE_TOKENIZERS:
        return PRE_TOKENIZERS[name]
    close = difflib.get_close_matches(name, PRE_TOKENIZERS, n=3, cutoff=0.5)
    some = "llama-bpe, qwen2, deepseek-v3, gpt-4o, tekken"
    known = f"nearest: {', '.join(close)}" if close else f"known: llama.cpp's, such as {some}"
    shown = name if len(name) <= 60 else name[:60] + "..."
    raise ModelError(f"tokenizer.ggml.pre is {shown!r}, which is not supported ({known})")
