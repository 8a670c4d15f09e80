"""Small tokenizers made with the `tokenizers` library, as checkpoints keep them."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors
from tokenizers import pre_tokenizers as pre
from tokenizers.trainers import BpeTrainer

from nextn.core.tokenizer.bpe import BYTE_CHARS

_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
# The patterns of well-known tokenizer.json files, each as its models' authors wrote it.
CUTS: dict[str, list[str]] = {
    "qwen2": [rf"{_SUFFIX}|{_WORD}|\p{{N}}|{_REST}"],
    "llama-bpe": [rf"{_SUFFIX}|{_WORD}|\p{{N}}{{1,3}}|{_REST}"],
    "qwen35": [
        rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ\u30a0-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
}  # fmt: skip
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def corpus() -> list[str]:
    """This project's own sources: words, numbers, punctuation, indentation."""
    root = Path(__file__).parents[3]
    texts = [path.read_text(encoding="utf-8") for path in sorted((root / "core").glob("*.py"))]
    return [
        *texts,
        "naïve café Привет мир 你好世界 ひらがな 한국어 हिन्दी 1234 ①② 😀👍🏽 it's don't",
    ]


@cache
def byte_level(pre_name: str | None, n_vocab: int = 700) -> str:
    """tokenizer.json; without a name, GPT-2's own cutting."""
    cuts: list[Any] = [pre.Split(Regex(p), "isolated") for p in CUTS.get(pre_name or "", [])]
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre_name == "llama-bpe"))
    tokenizer.normalizer = normalizers.NFC()
    last = pre.ByteLevel(add_prefix_space=False, use_regex=pre_name is None)
    tokenizer.pre_tokenizer = pre.Sequence([*cuts, last])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=n_vocab, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIALS])
    tokenizer.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return tokenizer.to_str()


@cache
def sentence_piece_merges(n_vocab: int = 700) -> str:
    """tokenizer.json as llama 2 has it: SentencePiece's pieces as merges, bytes to fall back to."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = BpeTrainer(
        vocab_size=n_vocab, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False
    )
    words = [word for text in corpus() for word in text.split()]
    tokenizer.train_from_iterator(words, trainer)
    found = json.loads(tokenizer.to_str())
    # Only the first three are found in text; the others are pieces.
    found["added_tokens"] = [t for t in found["added_tokens"] if t["id"] < 3]
    found["post_processor"] = json.loads(_bos_first().to_str())["post_processor"]
    return json.dumps(found)


@cache
def plain_merges(n_vocab: int = 700) -> str:
    """tokenizer.json as Gemma 4 has it: merges of plain characters, bytes to fall back to."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre.Split("\u2581", "merged_with_next")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    marks = ("<|turn>", "<turn|>", "<|tool_call>", "<tool_call|>", "<|channel>")
    names = ["<pad>", "<eos>", "<bos>", "<unk>", *marks]
    trainer = BpeTrainer(vocab_size=n_vocab, special_tokens=[*names, *bytes_], show_progress=False)
    lines = [line for text in corpus() for line in text.split("\n")]
    tokenizer.train_from_iterator(lines, trainer)
    found = json.loads(tokenizer.to_str())
    found["added_tokens"] = [t for t in found["added_tokens"] if t["id"] < len(names)]
    found["pre_tokenizer"] = None
    return json.dumps(found)


def tiktoken_ranks(definition: str) -> str:
    """A byte-level vocabulary as tiktoken keeps it: a token's bytes in base 64, and its rank."""
    model = json.loads(definition)["model"]
    codes = {char: bytes([byte]) for byte, char in enumerate(BYTE_CHARS)}
    order = sorted(model["vocab"], key=model["vocab"].get)
    return "".join(
        f"{base64.b64encode(b''.join(codes[char] for char in token)).decode()} {rank}\n"
        for rank, token in enumerate(order)
    )


def _bos_first() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({"<s>": 1}, []))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def sentence_piece_proto(
    pieces: Sequence[tuple[str, float, int]], *, algorithm: int = 2, adds_space: bool = True
) -> bytes:
    """A tokenizer.model, written by hand: text, score and kind of each piece."""
    out = b""
    for text, score, kind in pieces:
        raw = text.encode()
        body = b"\x0a" + _varint(len(raw)) + raw + b"\x15" + struct.pack("<f", score)
        body += b"\x18" + _varint(kind)
        out += b"\x0a" + _varint(len(body)) + body
    trainer = b"\x0a\x01x" + b"\x18" + _varint(algorithm) + b"\x20" + _varint(len(pieces))
    normalizer = b"\x0a\x08identity" + b"\x18" + _varint(int(adds_space))
    for key, body in ((b"\x12", trainer), (b"\x1a", normalizer)):
        out += key + _varint(len(body)) + body
    return out


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
