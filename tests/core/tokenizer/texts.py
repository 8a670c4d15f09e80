"""Random texts that try to break tokenizers: scripts, digits, spaces, marks, runs, look-alikes.

All code points are in Unicode 15; later ones are classed by different tables in different
programs, so equality would mean nothing there.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable

# ruff: noqa: RUF001 - look-alikes are what these texts are for

# Blocks to which no later version of Unicode added anything.
_BLOCKS = (
    (0x20, 0x7E), (0xA0, 0x17F), (0x180, 0x24F), (0x250, 0x2FF), (0x300, 0x36F), (0x370, 0x3FF),
    (0x400, 0x52F), (0x531, 0x58F), (0x591, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FE),
    (0xB80, 0xBFA), (0xE01, 0xE5B), (0xE80, 0xEDF), (0xF00, 0xFDA), (0x1000, 0x109F),
    (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137C), (0x13A0, 0x13FD), (0x1400, 0x169C),
    (0x1780, 0x17F9), (0x1E00, 0x1FFE), (0x2000, 0x206F), (0x2070, 0x209C), (0x20A0, 0x20C0),
    (0x2100, 0x218B), (0x2190, 0x23FF), (0x2440, 0x27BF), (0x2C60, 0x2C7F), (0x2E80, 0x2FD5),
    (0x3000, 0x30FF), (0x3105, 0x318E), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA000, 0xA4C6),
    (0xA9E0, 0xA9FE), (0xAA60, 0xAA7F), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xF900, 0xFAD9),
    (0xFB00, 0xFB4F), (0xFE00, 0xFE6B), (0xFEFF, 0xFFFD), (0x10400, 0x1049D), (0x104B0, 0x104FB),
    (0x1D400, 0x1D7FF), (0x1E900, 0x1E959), (0x1F300, 0x1F64F), (0x1F680, 0x1F6C5),
    (0x1F900, 0x1F9FF), (0x20000, 0x2A6DF), (0x2F800, 0x2FA1D), (0xE0100, 0xE01EF),
)  # fmt: skip
_SPACES = " \t\n\r\v\f\x85\xa0\u1680\u2000\u2003\u200a\u2028\u2029\u202f\u205f\u3000"
_ODD = "\x00\x01\x1c\x1f\x7f\x80\x9f\xad\u180e\u200b\u200c\u200d\u2060\ufeff\ufe0f\ufffd\U0010ffff"
_WORDS = (
    "the", "Hello", "WORLD", "don", "I", "you", "it", "naïve", "Straße", "Ünïcödé", "мир", "ΑΒΓ",
    "שלום", "مرحبا", "नमस्ते", "สวัสดี", "漢字", "かな", "カタカナ", "한국어", "ﬁ", "ǅ", "Ⅷ", "ª",
    "iPhone", "camelCase", "HTTPServer", "x86_64", "a", "B",
)  # fmt: skip
_SUFFIXES = (
    "'s", "'S", "'t", "'T", "'re", "'RE", "'Re", "'ve", "'VE", "'m", "'M", "'ll", "'LL", "'lL",
    "'d", "'D", "'\u017f", "'\u212a", "''", "'x", "\u2019s",
)  # fmt: skip
_NUMBERS = (
    "0", "7", "42", "123", "1234", "12345", "1234567", "3.14", "1,000", "½", "٣٤٥", "४५", "²",
    "Ⅻ", "１２３", "㊿", "𝟘𝟙",
)  # fmt: skip
_EMOJI = (
    "😀", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "❤️", "🏴‍☠️", "1️⃣", "🚀🚀🚀",
)  # fmt: skip
_SPECIALS = (
    "<s>", "</s>", "<unk>", "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|eot_id|>", "<tool>",
    "<|end|>", "<|assistant|>", "<0x41>", "<0x0A>", "<｜end▁of▁sentence｜>", "<|fim_prefix|>",
    "<|im_end", "|>", "[PAD]", "▁", "▁▁", "Ġ", "Ċ", "<|begin_of_text|>", "<bos>", "<eos>",
)  # fmt: skip


def _assigned() -> list[list[str]]:
    return [
        [c for c in map(chr, range(low, high + 1)) if unicodedata.category(c) not in ("Cn", "Cs")]
        for low, high in _BLOCKS
    ]


_CHARS = _assigned()  # one list per block
_MARKS = [char for block in _CHARS for char in block if unicodedata.category(char)[0] == "M"]


def _run(rng: random.Random) -> str:
    char: str = rng.choice([*" \n\ta1.'=-", rng.choice(_SPACES), rng.choice(rng.choice(_CHARS))])
    return char * rng.choice((2, 3, 4, 5, 8, 15, 16, 17, 33, 64, 130))


def _marked(rng: random.Random) -> str:
    marks = "".join(rng.choices(_MARKS, k=rng.randint(1, 3)))
    return rng.choice(["a", " ", "1", "!", "", "Z", *rng.choice(_CHARS)[:9]]) + marks


def _mixed(rng: random.Random) -> str:
    return "".join(rng.choice(rng.choice(_CHARS)) for _ in range(rng.randint(1, 4)))


_MAKERS: tuple[Callable[[random.Random], str], ...] = (
    lambda rng: rng.choice(_WORDS),
    lambda rng: " " + rng.choice(_WORDS),
    lambda rng: rng.choice(_WORDS) + rng.choice(_SUFFIXES),
    lambda rng: rng.choice(_SUFFIXES),
    lambda rng: rng.choice(_NUMBERS),
    lambda rng: rng.choice(_EMOJI),
    lambda rng: rng.choice(_SPECIALS),
    lambda rng: "".join(rng.choices(_SPACES, k=rng.randint(1, 4))),
    lambda rng: " " * rng.randint(1, 5),
    lambda rng: "\n" * rng.randint(1, 3),
    lambda rng: "".join(rng.choices("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", k=rng.randint(1, 4))),
    lambda rng: "".join(rng.choices(rng.choice(_CHARS), k=rng.randint(1, 6))),
    _mixed,
    lambda rng: rng.choice(_ODD),
    _marked,
    _run,
)


def random_texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [
        "".join(rng.choice(_MAKERS)(rng) for _ in range(rng.randint(1, 14))) for _ in range(count)
    ]


def narrow_texts(alphabet: str, count: int, seed: int) -> list[str]:
    """Few characters in every order: what ties and overlapping merges need."""
    rng = random.Random(seed)
    return ["".join(rng.choices(alphabet, k=rng.randint(0, 40))) for _ in range(count)]
