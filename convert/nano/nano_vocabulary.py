"""A byte-level BPE of 4096 entries, trained on the corpus.

Text is cut as for GPT-2: a newline goes with the indentation after it, never with the punctuation
before it. A prompt such as `def f(x):` thus ends where a token ends, as in training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.gguf.reader import open_gguf

PRE = "gpt-2"  # tokenizer.ggml.pre, known here and to llama.cpp
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
SPECIALS = (END_OF_TEXT, IM_START, IM_END, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@dataclass(frozen=True, slots=True)
class NanoVocabulary:
    """Special tokens come last, as in Qwen's vocabularies."""

    engine: Any  # tokenizers.Tokenizer

    @classmethod
    def train(cls, texts: Iterable[str], size: int) -> NanoVocabulary:
        from tokenizers import models, pre_tokenizers, trainers

        engine = _engine(models.BPE())
        trainer = trainers.BpeTrainer(
            vocab_size=size - len(SPECIALS),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        engine.train_from_iterator(texts, trainer)
        engine.add_special_tokens(list(SPECIALS))
        return cls(engine)

    @classmethod
    def load(cls, path: Path) -> NanoVocabulary:
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_file(str(path)))

    @classmethod
    def of_gguf(cls, path: Path) -> NanoVocabulary:
        """Of a model that was made here."""
        from tokenizers import models

        with open_gguf(path) as file:
            tokens = list(file.metadata.strs("tokenizer.ggml.tokens"))
            merges = list(file.metadata.strs("tokenizer.ggml.merges"))
        ids = {token: i for i, token in enumerate(tokens) if token not in SPECIALS}
        pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
        engine = _engine(models.BPE(ids, pairs))
        engine.add_special_tokens(list(SPECIALS))
        return cls(engine)

    def save(self, path: Path) -> None:
        self.engine.save(str(path))

    def __len__(self) -> int:
        return int(self.engine.get_vocab_size())

    def id_of(self, special: str) -> int:
        return int(self.engine.token_to_id(special))

    def encode(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Token ids of texts from `samples.py`, in which spelled-out special tokens are special."""
        for encoding in self.engine.encode_batch(list(texts)):
            yield encoding.ids

    def tokens(self) -> list[str]:
        by_text = self.engine.get_vocab()
        return sorted(by_text, key=by_text.__getitem__)

    def merges(self) -> list[str]:
        merges = json.loads(self.engine.to_str())["model"]["merges"]
        return [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]

    def metadata(self) -> dict[str, Any]:
        """GGUF keys."""
        tokens = self.tokens()
        kinds = [3 if token in SPECIALS else 1 for token in tokens]  # control, normal
        # A text begins as documents do in training: behind the end of another.
        ids = {
            "bos": END_OF_TEXT, "eos": END_OF_TEXT, "eot": IM_END, "padding": END_OF_TEXT,
            "fim_pre": FIM_PREFIX, "fim_suf": FIM_SUFFIX, "fim_mid": FIM_MIDDLE,
        }  # fmt: skip
        keys: dict[str, Any] = {
            "model": "gpt2",
            "pre": PRE,
            "tokens": tokens,
            "token_type": kinds,
            "merges": self.merges(),
            "add_bos_token": True,
        }
        keys |= {f"{name}_token_id": self.id_of(text) for name, text in ids.items()}
        return {f"tokenizer.ggml.{name}": value for name, value in keys.items()} | {
            "tokenizer.chat_template": CHAT_TEMPLATE
        }


def _engine(model: Any) -> Any:
    from tokenizers import Tokenizer, decoders, pre_tokenizers

    engine = Tokenizer(model)
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    engine.decoder = decoders.ByteLevel()
    return engine
