"""Vocabularies to test with: small ones made here, and real ones where they are at hand.

The real ones, GGUF files without tensors beside texts and their ids, are not part of the
project; tests that want them are skipped where they are absent.
"""

from __future__ import annotations

import random
from pathlib import Path

from nextn.core.gguf.reader import open_gguf
from nextn.core.tokenizer.bpe import BYTE_CHARS
from nextn.core.tokenizer.pretokenizers import PRE_TOKENIZERS

Metadata = dict[str, object]

# A name of each rule; some rules have several.
ONE_OF_EACH_RULE = tuple({id(rule): pre for pre, rule in PRE_TOKENIZERS.items()}.values())

FOLDER = Path(__file__).resolve().parents[4] / "shared" / "data" / "vocab"
NAMES = (
    "deepseek-coder", "deepseek-llm", "gpt-2", "llama-bpe", "llama-spm", "phi-3", "qwen2",
    "qwen35",
)  # fmt: skip
SKIP_REASON = "the folder ../shared/data/vocab with vocabulary-only GGUFs is absent"


def real(name: str) -> Metadata:
    return dict(open_gguf(FOLDER / f"ggml-vocab-{name}.gguf").metadata)


def expected(name: str) -> list[tuple[str, list[int]]]:
    """The texts that come with a real vocabulary, and their ids."""
    path = FOLDER / f"ggml-vocab-{name}.gguf"
    texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
    lines = Path(f"{path}.out").read_text().split("\n")
    return [(text, list(map(int, line.split()))) for text, line in zip(texts, lines, strict=False)]


def byte_bpe(
    pre: str = "gpt-2", merges: tuple[str, ...] = (), more: tuple[str, ...] = (), **keys: object
) -> Metadata:
    """All 256 bytes, what the merges make, `more`, <s> and </s>, and one user-defined token."""
    made = [merge.replace(" ", "") for merge in merges]
    tokens = [*BYTE_CHARS, *made, *more, "<s>", "</s>", "<tool>"]
    n = len(tokens)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (n - 3) + [3, 3, 4],
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.bos_token_id": n - 3,
        "tokenizer.ggml.eos_token_id": n - 2,
    } | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def pair_bpe(pre: str) -> Metadata:
    """Most pairs of bytes are a token, at a random rank: a cut missed or made anywhere shows."""
    rng = random.Random(7)
    ascii_bytes = b"aAbBsStTdDmMlLrReEvV0123.,!?'/-_()[]$+<>^|~` \t\n\r"
    pairs = [(left, right) for left in ascii_bytes for right in ascii_bytes]
    high = range(0x80, 0x100)
    pairs += [(rng.choice(high), rng.choice(high)) for _ in range(4000)]
    pairs += [(rng.choice(high), rng.choice(ascii_bytes)) for _ in range(2000)]
    pairs += [(rng.choice(ascii_bytes), rng.choice(high)) for _ in range(2000)]
    pairs = list(dict.fromkeys(pairs))
    rng.shuffle(pairs)
    merges = tuple(f"{BYTE_CHARS[left]} {BYTE_CHARS[right]}" for left, right in pairs)
    # No merge makes these: only a rule that ignores merges finds them.
    unreachable = ("the", "\u0120Hello", "WORLD", "123", "iPhone")
    return byte_bpe(pre, merges, unreachable)


def char_bpe(pre: str) -> Metadata:
    """As `pair_bpe`, of characters, with a byte token for each byte."""
    rng = random.Random(8)
    alphabet = "aAbBsSTeEr012.,!'\u00e9\u6f22\u0438\u3042\u00a0\u2581 \t\n"
    halves = alphabet.replace(" ", "")
    pairs = [f"{left} {right}" for left in halves for right in halves]
    rng.shuffle(pairs)
    pairs += ["\n\n \n", "\u2581\u2581 \u2581\u2581"]
    tokens = [
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *alphabet, *(pair.replace(" ", "") for pair in pairs), "\n" * 5, "<s>", "</s>", "<tool>",
    ]  # fmt: skip
    n = len(tokens)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [6] * 256 + [1] * (n - 259) + [3, 3, 4],
        "tokenizer.ggml.merges": pairs,
        "tokenizer.ggml.bos_token_id": n - 3,
        "tokenizer.ggml.eos_token_id": n - 2,
    }


def spm(pieces: dict[str, float], **keys: object) -> Metadata:
    """<unk>, <s>, </s>, 256 byte tokens, then `pieces` with their scores, then <tool>."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *pieces,
        "<tool>",
    ]
    n_pieces = len(pieces)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()) + [0.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * n_pieces + [4],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    } | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}


def random_spm(seed: int) -> Metadata:
    """Overlapping pieces over a few letters, with many equal scores: all that ties can do."""
    rng = random.Random(seed)
    pieces = {char: float(-rng.randrange(3)) for char in "ab\u2581\u00e9\u6f22"}
    while len(pieces) < 60:
        left, right = rng.choice(list(pieces)), rng.choice(list(pieces))
        if len(left + right) <= 9:
            pieces[left + right] = float(-rng.randrange(12))
    return spm(pieces)


def gemma4() -> Metadata:
    chars = "ab c\n\u00e9\u6f22".replace(" ", "\u2581")
    merges = ["a b", "\u2581 a", "\u2581 \u2581", "\u2581a b", "\n \n", "\u6f22 \u6f22", "a a"]
    tokens = [
        "<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)),
        *chars, *(merge.replace(" ", "") for merge in merges), "\n\n\n", "<tool>",
    ]  # fmt: skip
    n = len(tokens)
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, 2] + [6] * 256 + [1] * (n - 261) + [4],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
    }
