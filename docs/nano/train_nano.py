"""How the bundled model is made: a small Qwen3.5 with an MTP head, trained on Python's sources.

    pip install 'nextn[train]' transformers
    python train_nano.py train FOLDER --minutes 60
    python train_nano.py evaluate FOLDER/nano-Q8_0.gguf

`train` reads the standard library, trains a tokenizer and the network, and writes a checkpoint as
`transformers` has them, which `spec convert hf` and `spec convert quantize` make a GGUF file of.
Interrupted, the same command goes on from FOLDER/training.pt. Packages are further sources, once
they lie in a folder: `pip install --no-deps --target PACKAGES -r packages.txt`, and `--library`.
"""

from __future__ import annotations

import argparse
import ast
import json
import pickle
import random
import re
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from nextn import core
from nextn.convert.measure.divergence import log_softmax
from nextn.convert.train.python_sources import (
    MAX_OVERLAP,
    default_library,
    first_prompts,
    is_held_out,
    is_judged,
    long_lines,
    overlap,
    read_library,
)
from nextn.core.errors import ConfigError, NextnError
from nextn.core.generation import EOS, GenerateParams
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams

try:
    import torch
    import transformers
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from torch import Tensor, nn
    from torch.nn import functional as F  # noqa: N812 - its usual name
    from transformers.models.qwen3_5.modeling_qwen3_5 import (
        Qwen3_5DecoderLayer,
        Qwen3_5RMSNorm,
        Qwen3_5TextModel,
    )

    from nextn.convert.train.optimiser import Optimiser
except ModuleNotFoundError as missing:
    sys.exit(f"error: {missing.name} is missing; run: pip install 'nextn[train]' transformers")

Tokens = NDArray[np.uint16]

# Sources -----------------------------------------------------------------------------------------


def gather(libraries: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Texts to train on, and those held out, of the first folder. What comes behind it, older
    libraries and packages, must bring new lines."""
    files = [list(read_library(library)) for library in libraries]
    held_out = [file.text for file in files[0] if is_held_out(file.name)]
    barred = {x for each in files for f in each if is_held_out(f.name) for x in long_lines(f.text)}
    train, seen = [], set(barred)
    for i, each in enumerate(files):
        for file in each:
            is_new = overlap(file.text, seen if i else barred) <= MAX_OVERLAP
            is_odd = is_held_out(file.name) or is_judged(file.text)
            if is_new and not is_odd and not any(token in file.text for token in SPECIALS):
                train.append(file.text)
                seen |= long_lines(file.text)
    if not train or not held_out:
        raise ConfigError(f"{libraries[0]}: too few sources; give lib/pythonX.Y as --library")
    return train, held_out


def parsed(text: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# Tokenizer ---------------------------------------------------------------------------------------

N_VOCAB = 4096
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE = "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"
SPECIALS = (END_OF_TEXT, IM_START, IM_END, FIM_PREFIX, FIM_SUFFIX, FIM_MIDDLE)
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE. Text is cut as for GPT-2: a newline goes with the indentation after it, never
    with the punctuation before it, so that a prompt such as `def f(x):` ends where a token ends."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_VOCAB - len(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(SPECIALS))
    return tokenizer


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Tokens]:
    encodings = tokenizer.encode_batch(list(texts), add_special_tokens=False)
    return [np.array(encoding.ids, np.uint16) for encoding in encodings]


# Documents ---------------------------------------------------------------------------------------

# Shares of the files' tokens. Definitions alone teach the model to begin as prompts do, with a
# header, and to end behind a body; fill-in and chat are few, enough to answer in form.
DEFINITION_SHARE, SHORT_SHARE, FIM_SHARE, CHAT_SHARE = 0.8, 0.1, 0.02, 0.04
CUT_SHARE = 0.4  # of what is short, encoded in two pieces that meet where prompts end
SHORT = (60, 2500)  # characters
WITH_DOCSTRING, METHOD = 3.0, 0.4  # how often such definitions are taken, against others
REQUESTS = (
    "Write a function `{}`: {}",
    "Implement `{}`. {}",
)


@dataclass(frozen=True)
class Definition:
    name: str
    source: str
    summary: str  # the docstring, which is one line, or nothing
    weight: float


class Documents:
    """Whole files, and pieces of them that are made anew in each epoch."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        self.texts, self.tokenizer = texts, tokenizer
        self.files = encode(tokenizer, texts)
        self.short = [text for text in texts if SHORT[0] <= len(text) <= SHORT[1]]
        self.definitions = [found for text in texts for found in definitions_of(text)]
        self.weights = list(accumulate(found.weight for found in self.definitions))
        self.explained = [d for d in self.definitions if d.summary and "def " in d.source]

    def epoch(self, seed: str) -> Tokens:
        """Documents in an order of their own, with an end token behind each."""
        rng = random.Random(seed)
        documents = list(self.files)
        shares: list[tuple[float, Sequence[Any], Callable[[random.Random], str]]] = [
            (DEFINITION_SHARE, self.definitions, self._definition),
            (SHORT_SHARE, self.short, lambda rng: rng.choice(self.short)),
            (FIM_SHARE, self.texts, self._fill_in),
            (CHAT_SHARE, self.explained, self._chat),
        ]
        for share, source, make in shares:
            left = int(share * sum(map(len, self.files))) if source else 0
            while left > 0:
                made = self._encoded(rng, [make(rng) for _ in range(256)])
                documents += made
                left -= sum(map(len, made))
        rng.shuffle(documents)
        end = np.array([self.tokenizer.token_to_id(END_OF_TEXT)], np.uint16)
        return np.concatenate([part for document in documents for part in (document, end)])

    def _encoded(self, rng: random.Random, texts: Sequence[str]) -> list[Tokens]:
        """Some in two pieces that meet behind a newline or behind the indentation there: these are
        one token with what follows, so that texts encoded whole never end as prompts do."""
        pieces: list[str] = []
        for text in texts:
            ends = [found.end() for found in re.finditer(r"\n *", text[:-1])] or [0]
            end = rng.choice(ends) if rng.random() < CUT_SHARE else 0
            if rng.random() < 0.5:
                end = len(text[:end].rstrip(" "))
            pieces += [text[:end], text[end:]]
        encoded = encode(self.tokenizer, pieces)
        return [np.concatenate(pair) for pair in zip(encoded[::2], encoded[1::2], strict=True)]

    def _definition(self, rng: random.Random) -> str:
        return rng.choices(self.definitions, cum_weights=self.weights)[0].source

    def _fill_in(self, rng: random.Random) -> str:
        """Prefix, suffix, then the middle, which ends with a line."""
        text = rng.choice(self.texts)
        start = rng.randrange(max(1, len(text) - 750))
        piece = text[start : start + 1500]
        a, b = sorted(rng.randrange(len(piece) + 1) for _ in range(2))
        b = piece.find("\n", min(b, a + 500)) + 1 or len(piece)
        return f"{FIM_PREFIX}{piece[:a]}{FIM_SUFFIX}{piece[b:]}{FIM_MIDDLE}{piece[a:b]}"

    def _chat(self, rng: random.Random) -> str:
        function = rng.choice(self.explained)
        question = rng.choice(REQUESTS).format(function.name, function.summary)
        answer = function.source.rstrip()
        return f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n{answer}{IM_END}\n"


def definitions_of(text: str) -> Iterator[Definition]:
    """Functions, methods and classes, at the left margin. Not those with a docstring of several
    lines: it would be longer than most of what a prompt asks for."""
    tree, lines = parsed(text), text.splitlines(keepends=True)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            source = textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip() + "\n"
            summary = ast.get_docstring(node) or ""
            if SHORT[0] <= len(source) <= SHORT[1] and "\n" not in summary:
                is_method = re.search(r"def \w+\((self|cls)\b", source.partition(":")[0])
                weight = (WITH_DOCSTRING if summary else 1.0) * (METHOD if is_method else 1.0)
                yield Definition(node.name, source, summary, weight)


# Network -----------------------------------------------------------------------------------------

# Other numbers of key heads than of value heads, so that all who read the file must order them.
SIZES: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 6,
    "full_attention_interval": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
    "max_position_embeddings": 4096, "tie_word_embeddings": False, "mtp_num_hidden_layers": 1,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25}


class Nano(nn.Module):
    """`transformers`' network, and the MTP block, which that package does not train. Parameters
    have the names of Qwen3.5's checkpoints."""

    def __init__(self, n_vocab: int) -> None:
        super().__init__()
        pairs = int(SIZES["head_dim"] * ROPE["partial_rotary_factor"]) // 2
        sections = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
        rope = ROPE | {"mrope_section": sections, "mrope_interleaved": True}
        self.config = transformers.Qwen3_5TextConfig(
            **SIZES, vocab_size=n_vocab, rope_parameters=rope, use_cache=False
        )
        self.model = Qwen3_5TextModel(self.config)
        self.lm_head = nn.Linear(SIZES["hidden_size"], n_vocab, bias=False)
        self.mtp = Mtp(self.config)
        self._start()

    def rows(self, tokens: Tensor) -> Tensor:
        """Hidden rows behind the last norm, (B, T, D): what the head and the MTP block read."""
        return self.model(tokens).last_hidden_state

    def draft_rows(self, tokens: Tensor, hidden: Tensor) -> Tensor:
        """The MTP block's rows for `tokens`, given the hidden rows of the tokens before them."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)[None]
        angles = self.model.rotary_emb(hidden, positions[None].expand(3, 1, -1))
        return self.mtp(self.model.embed_tokens(tokens), hidden, angles)

    @torch.no_grad()
    def _start(self) -> None:
        """Each block begins as the identity: what writes to the residual stream is zero."""
        for name, parameter in self.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                parameter.zero_()
            elif name.endswith("embed_tokens.weight"):
                parameter.normal_(0.0, 0.5)
            elif name.endswith("lm_head.weight"):
                parameter.normal_(0.0, 0.02)
            elif name.endswith("dt_bias"):  # softplus of it is the step, from 0.001 to 0.1
                step = torch.exp(torch.empty_like(parameter).uniform_(np.log(1e-3), np.log(0.1)))
                parameter.copy_(step + torch.log(-torch.expm1(-step)))
            elif name.endswith("A_log"):
                parameter.copy_(torch.empty_like(parameter).uniform_(1, 16).log())
            elif parameter.ndim == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)


class Mtp(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        d, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(d, eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(d, eps)
        self.fc = nn.Linear(2 * d, d, bias=False)
        at = config.layer_types.index("full_attention")
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, at)])
        self.norm = Qwen3_5RMSNorm(d, eps)

    def forward(self, embedded: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        pair = [self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)]
        x = self.layers[0](self.fc(torch.cat(pair, -1)), position_embeddings=angles)
        return self.norm(x)


# Losses ------------------------------------------------------------------------------------------

MTP_WEIGHT = 0.3
STEP_WEIGHTS = (1.0, 0.7, 0.5)  # of a draft's tokens
AHEAD = len(STEP_WEIGHTS)  # tokens that a row has beyond those whose next is learned


def losses(network: Nano, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Of the next token, and of the MTP block on one row in four, in nats per token.

    The block drafts several tokens from every place, each from its own rows, as in use, and learns
    the network's distributions. The tokens are the true ones, since later steps count only if the
    earlier ones were right.
    """
    hidden = network.rows(rows[:, :-1])
    logits = network.lm_head(hidden).float()
    trunk = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    few, n = -(-len(rows) // 4), hidden.shape[1] - AHEAD
    wanted, drafted = logits[:few].detach().softmax(-1), hidden[:few, :n]
    total = torch.zeros((), device=rows.device)
    for i, weight in enumerate(STEP_WEIGHTS, 1):
        drafted = network.draft_rows(rows[:few, i : i + n], drafted)
        log_probs = network.lm_head(drafted).float().log_softmax(-1)
        total = total - weight * (wanted[:, i : i + n] * log_probs).sum(-1).mean()
    return trunk, total / sum(STEP_WEIGHTS)


# Training ----------------------------------------------------------------------------------------

# Matrices that Adam moves, not Muon: rows looked up or read by themselves do not mix.
RATES = {
    "embed_tokens.weight": 0.015, "lm_head.weight": 0.003,
    "in_proj_a.weight": 0.004, "in_proj_b.weight": 0.004,
}  # fmt: skip
WARM_UP, DECAY_FROM = 0.015, 0.45  # of the run; then rates fall to zero, linearly
SAVE_EVERY, REPORT_EVERY = 60.0, 20  # seconds, steps


@dataclass
class Place:
    """How far a run is."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    epoch: int = 0
    row: int = 0


class Trainer:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.path = options, options.folder / "training.pt"
        options.folder.mkdir(parents=True, exist_ok=True)
        saved = self._saved() if self.path.exists() else None
        say(f"reading {', '.join(map(str, options.library))}")
        texts, held_out = gather(options.library)
        self.tokenizer = Tokenizer.from_str(saved["tokenizer"]) if saved else train_tokenizer(texts)
        self.documents = Documents(texts, self.tokenizer)
        torch.manual_seed(options.seed)
        self.network = Nano(self.tokenizer.get_vocab_size()).to(options.device)
        self.optimiser, self.place = Optimiser(self.network, RATES), Place()
        n_tokens = sum(map(len, self.documents.files))
        self.run_of = [n_tokens, options.seed, options.rows, options.length]
        if saved:
            self._resume(saved)
        say(f"{len(texts)} files, {len(held_out)} held out, {n_tokens / 1e6:.2f}M tokens")

    def _saved(self) -> dict[str, Any]:
        try:
            return torch.load(self.path, map_location=self.options.device, weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError):
            raise ConfigError(f"{self.path} is damaged; remove it or give another folder") from None

    def _resume(self, saved: dict[str, Any]) -> None:
        if saved["run_of"] != self.run_of:
            what = "other sources, seed, rows or length"
            raise ConfigError(f"{self.path} is of a run with {what}; give another folder")
        self.network.load_state_dict(saved["network"])
        self.optimiser.adam.load_state_dict(saved["adam"])
        self.optimiser.momenta = saved["momenta"]
        self.place = Place(**saved["place"])
        say(f"going on at step {self.place.step}, {self.place.seconds / 60:.1f} minutes")

    def save(self) -> None:
        """Replaces the old file once the new one is written."""
        part = self.path.with_suffix(".part")
        state = {
            "network": self.network.state_dict(), "adam": self.optimiser.adam.state_dict(),
            "momenta": self.optimiser.momenta, "place": asdict(self.place),
            "run_of": self.run_of, "tokenizer": self.tokenizer.to_str(),
        }  # fmt: skip
        torch.save(state, part)
        part.replace(self.path)

    @property
    def progress(self) -> float:
        by_time = self.place.seconds / (60 * self.options.minutes) if self.options.minutes else 0.0
        by_tokens = self.place.tokens / self.options.tokens if self.options.tokens else 0.0
        return min(1.0, max(by_time, by_tokens))

    def run(self) -> None:
        last_saved = time.monotonic()
        for rows in self._batches():
            if self.progress >= 1:
                break
            start = time.monotonic()
            said = self._step(rows.to(self.options.device))
            self.place.seconds += time.monotonic() - start
            self.place.row += len(rows)
            if self.place.step % REPORT_EVERY == 0 or self.place.step <= 3:
                say(f"{100 * self.progress:5.1f} %  step {self.place.step}  {said}")
            if time.monotonic() - last_saved > SAVE_EVERY:
                self.save()
                last_saved = time.monotonic()
        self.save()

    def _batches(self) -> Iterator[Tensor]:
        """An epoch is one long text, cut into rows that share AHEAD tokens, in random order."""
        length, n = self.options.length, self.options.rows
        while True:
            tokens = self.documents.epoch(f"{self.options.seed} {self.place.epoch}")
            n_rows = (len(tokens) - AHEAD) // length
            if n_rows < n:
                raise ConfigError(f"{len(tokens)} tokens are too few for one batch")
            order = np.random.default_rng([self.options.seed, self.place.epoch]).permutation(n_rows)
            while self.place.row + n <= n_rows:
                starts = order[self.place.row : self.place.row + n] * length
                batch = np.stack([tokens[at : at + length + AHEAD] for at in starts])
                yield torch.from_numpy(batch.astype(np.int64))
            self.place.epoch, self.place.row = self.place.epoch + 1, 0

    def _step(self, rows: Tensor) -> str:
        with self._products():
            trunk, mtp = losses(self.network, rows)
        loss = trunk + MTP_WEIGHT * mtp
        if not torch.isfinite(loss):
            raise ConfigError(f"the loss of step {self.place.step} is not finite")
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
        rise, fall = self.progress / WARM_UP, (1 - self.progress) / (1 - DECAY_FROM)
        self.optimiser.step(min(1.0, max(rise, 0.02), fall))
        self.place.step += 1
        self.place.tokens += rows.numel()
        return f"loss {trunk.item():.3f}  mtp {mtp.item():.3f}"

    def _products(self) -> torch.autocast:
        kind = self.options.device.partition(":")[0]
        return torch.autocast(kind, torch.bfloat16, enabled=self.options.bfloat16)


# Files -------------------------------------------------------------------------------------------


def export(folder: Path, network: Nano, tokenizer: Tokenizer, license_id: str) -> Path:
    """A checkpoint in a folder, and what `spec convert` makes of it."""
    checkpoint = folder / "nano"
    checkpoint.mkdir(exist_ok=True)
    weights = {name: value.cpu().contiguous() for name, value in network.state_dict().items()}
    save_file(weights, checkpoint / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    end, turn_end = (tokenizer.token_to_id(token) for token in (END_OF_TEXT, IM_END))
    files: dict[str, dict[str, Any]] = {
        "config.json": network.config.to_dict()
        | {"architectures": ["Qwen3_5ForCausalLM"], "eos_token_id": end},
        # A text begins as documents do in training: behind the end of another.
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True,
            "bos_token": END_OF_TEXT, "eos_token": END_OF_TEXT, "pad_token": END_OF_TEXT,
            "chat_template": CHAT_TEMPLATE,
        },
        # A small model's unlikely tokens are mostly wrong, and it repeats lines without a penalty.
        "generation_config.json": {
            "eos_token_id": [end, turn_end], "do_sample": True,
            "temperature": 0.8, "top_p": 0.8, "repetition_penalty": 1.15,
        },
    }  # fmt: skip
    for name, content in files.items():
        (checkpoint / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    (checkpoint / "README.md").write_text(f"---\nlicense: {license_id}\n---\n", encoding="utf-8")
    plain, small = folder / "nano-F32.gguf", folder / "nano-Q8_0.gguf"
    spec("convert", "hf", str(checkpoint), "-o", str(plain), "--type", "f32", "--force")
    spec("convert", "quantize", str(plain), "-o", str(small), "--type", "Q8_0", "--force")
    return small


def spec(*words: str) -> None:
    start = "from nextn.cli.start import main; main()"
    done = subprocess.run([sys.executable, "-c", start, *words], check=False)
    if done.returncode:
        raise ConfigError(f"spec {' '.join(words)} failed")


# Evaluation --------------------------------------------------------------------------------------

WINDOW, STRIDE = 1024, 512  # tokens; all but a file's first have at least STRIDE before them
N_WRITTEN, N_SEEDS = 64, 5
ALLOW_INCOMPLETE = 0x4000  # PyCF_ALLOW_INCOMPLETE_INPUT: an error at the end names itself so


def bits_per_byte(runtime: Runtime, texts: Iterable[str]) -> float:
    """Of each file by itself. The token in front of a text is free."""
    bits, n_bytes = 0.0, 0
    for text in texts:
        tokens = runtime.tokenizer.encode(text, parse_special=False)
        n_bytes += len(text.encode())
        scored = 1
        for end in [*range(WINDOW, len(tokens), STRIDE), len(tokens)]:
            start = max(0, end - WINDOW)
            logits = runtime.logits(tokens[start:end])[scored - 1 - start : end - 1 - start]
            log_probs = log_softmax(logits)[np.arange(end - scored), tokens[scored:end]]
            bits -= float(log_probs.sum() / np.log(2))
            scored = end
    return bits / n_bytes


def share_that_parses(runtime: Runtime, samplings: Sequence[SamplingParams]) -> float:
    found = []
    for sampling in samplings:
        for prompt in first_prompts():
            params = GenerateParams(sampling, max_tokens=N_WRITTEN)
            events = list(runtime.generate(prompt, params))
            text = "".join(event.text for event in events)
            found.append(is_python(prompt, text, ended=events[-1].stop_reason == EOS))
    return sum(found) / len(found)


def is_python(prompt: str, text: str, *, ended: bool) -> bool:
    """Whether it adds a statement, and parses up to the last complete one. A text that the limit
    cut off may end within a statement; one that the model ended may not."""
    source = prompt + text
    if ended and parsed(source) is None:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            whole_lines = source[: source.rfind("\n") + 1]
            compile(whole_lines, "text", "exec", ast.PyCF_ONLY_AST | ALLOW_INCOMPLETE)
    except SyntaxError as error:
        if error.msg != "incomplete input":
            return False
    except (ValueError, RecursionError, MemoryError):
        return False
    before, lines = parsed(prompt), source.splitlines(keepends=True)
    for n in range(len(lines), prompt.count("\n"), -1):
        tree = parsed("".join(lines[:n]))
        if tree is not None:
            return before is None or ast.dump(tree) != ast.dump(before)
    return False


def evaluate(options: argparse.Namespace) -> None:
    _, texts = gather(options.library[:1])
    say(f"held-out files: {len(texts)}, {sum(len(text.encode()) for text in texts)} bytes")
    with core.load(options.file, options.device) as runtime:
        say(f"bits per byte: {bits_per_byte(runtime, texts):.3f}")
        usual = replace(SamplingParams(), **runtime.recommended_sampling)
        seeds = [replace(usual, seed=seed) for seed in range(N_SEEDS)]
        say(f"prompts whose continuation parses: {share_that_parses(runtime, seeds):.1%}")
        greedy = share_that_parses(runtime, [SamplingParams(temperature=0.0)])
        say(f"the same, greedy: {greedy:.1%}")


# Command line ------------------------------------------------------------------------------------


def train(options: argparse.Namespace) -> None:
    if not options.minutes and not options.tokens:
        options.minutes = 60.0
    if options.threads:
        torch.set_num_threads(options.threads)
    trainer = Trainer(options)
    trainer.run()
    path = export(options.folder, trainer.network, trainer.tokenizer, options.license)
    say(f"{path}: spec generate -m {path} -p 'def fibonacci(n):'")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    commands = parser.add_subparsers(required=True)

    training = commands.add_parser("train", help="make a model")
    training.set_defaults(work=train)
    add = training.add_argument
    add("folder", type=Path, help="folder for the checkpoint and the GGUF files")
    add("--minutes", type=positive(float), help="minutes of training; default: 60")
    add("--tokens", type=positive(int), help="tokens to train on, in place of minutes")
    add("--license", default="psf-2.0", help="of the sources, for the file; default: psf-2.0")
    add("--seed", type=int, default=1, help="default: 1")
    add("--rows", type=positive(int), default=4, help="rows of a batch; default: 4")
    add("--length", type=positive(int), default=1024, help="tokens of a row; default: 1024")
    add("--threads", type=positive(int), help="default: torch's")
    add("--bfloat16", action="store_true", help="products in bfloat16, where that is fast")

    judging = commands.add_parser("evaluate", help="bits per byte, and how much of it parses")
    judging.set_defaults(work=evaluate)
    judging.add_argument("file", type=Path, help="GGUF file")
    for command in (training, judging):
        several = "sources as lib/pythonX.Y; give it again for folders of which new files are taken"
        command.add_argument("--library", type=folder, action="append", help=several)
        command.add_argument("--device", default="cpu", help="default: cpu")
    options = parser.parse_args(arguments)
    options.library = options.library or [default_library()]
    return options


def folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    return Path(text)


def positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    return number


def main(arguments: Sequence[str] | None = None) -> None:
    transformers.logging.set_verbosity_error()
    try:
        options = parse(arguments)
        options.work(options)
    except KeyboardInterrupt:
        say("interrupted; the same command goes on from what was saved last")
        sys.exit(130)
    except (NextnError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
