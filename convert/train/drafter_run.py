"""From a model to its drafter: texts, features, training. A stopped run goes on where it was."""

from __future__ import annotations

import errno
import hashlib
import io
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from ...core.backend.step import Ints
from ...core.bench.prompt_tokens import PromptRenderer
from ...core.bench.record import Prompt
from ...core.errors import ConfigError
from ...core.model_names import is_bundled
from ...core.runtime import Runtime
from ...core.sampling.params import SamplingParams
from ...core.speculation.options import EAGLE3, MTP
from .answer_writing import LONGEST_ANSWER, LONGEST_REQUEST, AnswerWriter
from .draft_trainer import ROWS, DraftTrainer, ReadText
from .drafter_kinds import DrafterKind, Eagle3Kind
from .feature_store import FeatureStore
from .mtp_kind import MtpKind
from .own_texts import KIND, digest_of, store_texts
from .text_store import StoredText, TextStore
from .training_requests import BuiltInRequests, FileRequests, PythonRequests, RequestSource
from .training_schedule import TrainingBudget
from .training_target import TrainingTarget, read_layers
from .unrolled_network import UnrolledNetwork
from .work_folder import TrainingPlan, WorkFolder, write_whole

KINDS: Final = {EAGLE3: Eagle3Kind, MTP: MtpKind}
DRAFT_VOCAB: Final = 8192
STEP_WEIGHTS: Final = (1.0, 0.8, 0.64)
OF_ACCEPTANCE_FROM: Final = 0.35
CONTINUED_RATE: Final = 0.3  # of the usual learning rates, where a drafter begins as another
WRITING_SHARE: Final = 0.3  # of the minutes; reading and training have the rest
LEAST_TOKENS: Final = 2000  # of answers
HELD_OUT_PART, MOST_HELD_OUT = 16, 32  # one text in so many is measured by
LEAST_TEXTS: Final = 2 * ROWS
MOST_ROWS, FEW_TEXTS = 8, 64
KEPT_FREE: Final = 200_000_000  # bytes of the disk
TRIED_STEPS: Final = 4
SAVE_EVERY: Final = 50  # steps
SAID_PARTS: Final = 6  # lines about the training


class TrainingOptions(Struct, frozen=True):
    minutes: float = 60.0
    disk: int = 8_000_000_000  # bytes for features
    draft_vocab: int = DRAFT_VOCAB
    seed: int = 1
    tokens: int = 0  # of answers; 0: as many as a share of the minutes gives
    steps: int = 0  # of training; 0: as many as the rest of the minutes gives
    prompts: Path | None = None
    texts: Path | None = None
    start_from: Path | None = None  # an earlier drafter
    kind: str = EAGLE3


class Voice(Protocol):
    """Where a run says how far it is."""

    def progress(self, stage: str, done: float) -> None: ...

    def remark(self, line: str) -> None: ...


class TrainedDrafter(Struct):
    kind: DrafterKind
    network: UnrolledNetwork
    target: TrainingTarget
    plan: TrainingPlan
    kinds: dict[str, int]  # texts of each
    n_tokens: int  # that were counted in training
    judged_by: list[Prompt]  # which were not trained on


class DrafterRun:
    def __init__(
        self,
        runtime: Runtime,
        options: TrainingOptions,
        sampling: SamplingParams,
        folder: Path,
        voice: Voice,
    ) -> None:
        self.runtime, self.options, self.sampling, self.voice = runtime, options, sampling, voice
        self.kind = KINDS[options.kind](runtime, options.start_from)
        self.layers = read_layers(runtime, self.kind.layers)
        self.began = time.monotonic()
        self.source = request_source(runtime, options)
        own = "" if options.texts is None else digest_of(options.texts)
        if options.start_from is not None:
            own += hashlib.sha256(options.start_from.read_bytes()).hexdigest()
        facts = f"{own} {self.source.digest} {sampling} {LONGEST_REQUEST} {LONGEST_ANSWER}"
        wanted = TrainingPlan(
            runtime.fingerprint,
            runtime.name,
            self.source.name if options.texts is None else str(options.texts),
            hashlib.sha256(facts.encode("utf-8", "replace")).hexdigest(),
            options.seed,
            options.minutes,
            kind=options.kind,
        )
        with disk_errors(folder):
            self.work = WorkFolder(folder, wanted)
            self.store = TextStore(folder)
        self.plan = self.work.plan

    def run(self) -> TrainedDrafter:
        with closing(self.work), disk_errors(self.work.path):
            self.write_texts()
            texts = self.chosen_texts()
            tokens = self.store.read()
            features = self.read_features(texts, tokens)
            return self.train(texts, tokens, features.read(texts, tokens))

    def write_texts(self) -> None:
        store, n_before, began = self.store, self.store.n_answered, time.monotonic()
        if self.options.texts is not None:
            self.voice.progress("reading the texts", 0.0)
            n = store_texts(self.options.texts, self.runtime, store, self.options.tokens)
            if n:
                self.voice.remark(f"left out: {n} {'files' if n > 1 else 'file'} that are no UTF-8")
        else:
            writer = AnswerWriter(
                self.runtime, self.source, self.sampling, store, self.options.seed
            )
            wanted = self._n_tokens(writer)
            meter = Meter(self.voice, "writing texts", wanted, n_before)
            writer.run(wanted, meter)
        n, seconds = store.n_answered - n_before, time.monotonic() - began
        kinds = ", ".join(f"{kind} {n}" for kind, n in sorted(store.kinds.items()))
        per_s = f", {n / seconds:.0f} tokens/s" if n and self.options.texts is None else ""
        what = f"{len(store.texts)} ({kinds}), {store.n_answered} tokens to learn from"
        self.voice.remark(f"texts      {what}{per_s}")
        if len(store.texts) < LEAST_TEXTS:
            raise ConfigError(
                f"{len(store.texts)} texts are too few to train on, {LEAST_TEXTS} is the least; "
                "give more with --texts, or more --tokens"
            )

    def _n_tokens(self, writer: AnswerWriter) -> int:
        if self.options.tokens or not self.plan.tokens:
            n = self.options.tokens
            if not n:
                self.voice.progress("measuring the speed of writing", 0.0)
                n = int(writer.speed() * 60 * self.options.minutes * WRITING_SHARE)
            self.plan.tokens = self.options.tokens or max(LEAST_TOKENS, n)
            self.work.save()
        return self.plan.tokens

    def chosen_texts(self) -> list[StoredText]:
        """As many as there is room for."""
        row = FeatureStore.row_bytes(len(self.layers) * self.runtime.model.hparams.n_embd)
        path = self.work.path / "features.f16"
        there = path.stat().st_size if path.exists() else 0
        free = shutil.disk_usage(self.work.path).free - KEPT_FREE + there
        allowed = min(self.options.disk, free)
        texts = self.store.texts
        kept = [text for text in texts if (text.at + text.n) * row <= allowed]
        if len(kept) < len(texts):
            whose = "--disk allows" if allowed == self.options.disk else "the disk has room for"
            self.voice.remark(
                f"features of all texts take {size(self.store.n_tokens * row)}, {whose} "
                f"{size(max(allowed, 0))}: {len(kept)} of {len(texts)} texts are used"
            )
        if len(kept) < LEAST_TEXTS:
            raise ConfigError(
                f"{self.work.path}: {size(max(allowed, 0))} have room for the features of "
                f"{len(kept)} texts, and {LEAST_TEXTS} is the least; give more with --disk, or a "
                "--work on another disk, and run the command again"
            )
        self.plan.n_texts = len(kept)
        self.work.save()
        return kept

    def read_features(self, texts: Sequence[StoredText], tokens: Ints) -> FeatureStore:
        width = self.runtime.model.hparams.n_embd
        features = FeatureStore(self.work.path, self.layers, width)
        n = texts[-1].at + texts[-1].n
        meter = Meter(self.voice, "reading features", n)
        features.add_missing(self.runtime, texts, tokens, meter)
        speed = f", {meter.speed:.0f} tokens/s" if meter.speed else ""
        self.voice.remark(
            f"features   {n} tokens, {len(self.layers)} rows of {width} each, "
            f"{size(n * features.row_bytes(len(self.layers) * width))}{speed}"
        )
        return features

    def train(
        self, texts: Sequence[StoredText], ids: Ints, read: Sequence[ReadText]
    ) -> TrainedDrafter:
        torch.manual_seed(self.options.seed)
        known, covered = draft_tokens(texts, ids, self.options.draft_vocab, self.runtime.n_vocab)
        target = TrainingTarget(self.runtime, known, self.kind.layers, self.sampling.temperature)
        scale = torch.as_tensor(read[0].scale)[: target.n_features]
        network = self.kind.network(self.runtime, target, scale, STEP_WEIGHTS)
        is_new = not self.kind.is_trained
        n_weights = sum(parameter.numel() for parameter in network.parameters())
        head = f"{len(target.head)} {self.kind.words} ({covered:.2%} of the texts)"
        begins = f"from {self.kind.begins}"
        self.voice.remark(f"drafter    {n_weights / 1e6:.1f} M weights, {head}, {begins}")
        held_out = list(range(0, len(read), HELD_OUT_PART))[:MOST_HELD_OUT]
        others = [i for i in range(len(read)) if i not in set(held_out)]
        ordered = [read[i] for i in (*held_out, *others)]
        budget = TrainingBudget(
            steps=self._n_steps(network, target, ordered, len(held_out)),
            of_acceptance_from=OF_ACCEPTANCE_FROM if is_new else 0.0,
            rate=1.0 if is_new else CONTINUED_RATE,
        )
        trainer = DraftTrainer(
            network, target, ordered, budget,
            n_held_out=len(held_out), rows=rows_of(ordered), seed=self.options.seed,
        )  # fmt: skip
        checkpoint = TrainingCheckpoint(
            self.work.path, trainer, f"{budget.steps} {len(read)} {len(target.head)}"
        )
        if checkpoint.load():
            self.voice.remark(f"training   goes on from step {trainer.step}")
        elif self.kind.is_trained:
            self.voice.remark(f"training     0%  {expected(trainer)}")
        meter = TrainingMeter(self.voice, trainer)
        trainer.run(checkpoint.save, SAVE_EVERY, meter)
        counted = sum(text.n - text.first for text in texts)
        kinds = {
            kind: sum(text.kind == kind for text in texts) for kind in sorted(self.store.kinds)
        }
        judged_by = self._judged_by([texts[i] for i in held_out], ids)
        return TrainedDrafter(self.kind, network, target, self.plan, kinds, counted, judged_by)

    def _judged_by(self, held_out: Sequence[StoredText], ids: Ints) -> list[Prompt]:
        if self.options.texts is None:
            return list(self.source.held_out)
        halves = [(i, ids[text.at : text.at + text.n // 2]) for i, text in enumerate(held_out)]
        decode = self.runtime.tokenizer.decode
        return [Prompt(f"own-{i}", KIND, text=decode(each.tolist())) for i, each in halves]

    def _n_steps(
        self,
        network: UnrolledNetwork,
        target: TrainingTarget,
        texts: Sequence[ReadText],
        n_held_out: int,
    ) -> int:
        """Measured once: the same number of steps gives the same drafter, whatever was stopped."""
        if self.options.steps or not self.plan.steps:
            steps = self.options.steps
            if not steps:
                self.voice.progress("measuring the speed of training", 0.0)
                tried = DraftTrainer(
                    network, target, texts, TrainingBudget(),
                    n_held_out=n_held_out, rows=rows_of(texts),
                )  # fmt: skip
                per_step = statistics.median(tried.times(TRIED_STEPS))
                left = 60 * self.options.minutes - (time.monotonic() - self.began)
                steps = max(20, int(max(left, 6 * self.options.minutes) / per_step))
            self.plan.steps = steps
            self.work.save()
        return self.plan.steps


class TrainingCheckpoint:
    """The state of a training on disk. `key`: what it must agree in to go on from it."""

    def __init__(self, folder: Path, trainer: DraftTrainer, key: str) -> None:
        self._path, self._trainer, self._key = folder / "checkpoint.pt", trainer, key

    def save(self) -> None:
        written = io.BytesIO()
        torch.save({"key": self._key, "state": self._trainer.state()}, written)
        write_whole(self._path, written.getvalue())

    def load(self) -> bool:
        if not self._path.exists():
            return False
        found = torch.load(self._path, weights_only=True)
        if found["key"] != self._key:  # of more texts, say, or of fewer steps
            return False
        self._trainer.go_on(found["state"])
        return True


class Meter:
    """Progress of a stage that counts tokens, with the time left."""

    def __init__(self, voice: Voice, stage: str, n: int, n_before: int = 0) -> None:
        self._voice, self._stage, self._n = voice, stage, n
        self._began, self._first, self.speed = time.monotonic(), n_before, 0.0

    def __call__(self, done: int) -> None:
        seconds = max(time.monotonic() - self._began, 1e-6)
        self.speed = (done - self._first) / seconds
        left = max(0, self._n - done) / max(self.speed, 1e-6)
        detail = f", {self.speed:.0f} tokens/s, {minutes(left)} left"
        self._voice.progress(self._stage + detail, min(done / self._n, 0.999))


class TrainingMeter:
    def __init__(self, voice: Voice, trainer: DraftTrainer) -> None:
        self._voice, self._trainer = voice, trainer
        self._losses: list[float] = []
        self._began, self._first = time.monotonic(), trainer.step

    def __call__(self, loss: float) -> None:
        trainer = self._trainer
        self._losses.append(loss)
        n, steps = trainer.step, trainer.budget.steps
        per_step = (time.monotonic() - self._began) / (n - self._first)
        left = minutes((steps - n) * per_step)
        self._voice.progress(f"training, step {n} of {steps}, {left} left", min(n / steps, 0.999))
        if n * SAID_PARTS // steps > (n - 1) * SAID_PARTS // steps:
            mean, self._losses = statistics.fmean(self._losses), []
            self._voice.remark(
                f"training   {n / steps:4.0%}  step {n}  {trainer.tokens / 1e6:.2f}M tokens  "
                f"loss {mean:.3f}  {expected(trainer)}  {left} left"
            )


def expected(trainer: DraftTrainer) -> str:
    rates = ", ".join(f"{rate:.3f}" for rate in trainer.acceptance())
    return f"held out, expected by place: {rates}"


def rows_of(texts: Sequence[ReadText]) -> int:
    """Texts of a batch: large ones share the optimiser's time."""
    return MOST_ROWS if len(texts) >= FEW_TEXTS else ROWS


def request_source(runtime: Runtime, options: TrainingOptions) -> RequestSource:
    is_chat = PromptRenderer(runtime).has_template
    if options.prompts is not None:
        return FileRequests(options.prompts, is_chat=is_chat)
    if is_bundled(runtime.file.path):
        return PythonRequests(options.seed)
    return BuiltInRequests(options.seed, is_chat=is_chat)


def draft_tokens(
    texts: Sequence[StoredText], ids: Ints, n: int, n_vocab: int
) -> tuple[Tensor | None, float]:
    """The `n` most frequent tokens of what counts, ascending, and their share of it. None: all."""
    counts = np.zeros(n_vocab, np.int64)
    for text in texts:
        counts += np.bincount(ids[text.at + text.first : text.at + text.n], minlength=n_vocab)
    if n >= n_vocab:
        return None, 1.0
    chosen = np.sort(np.argsort(-counts, kind="stable")[:n])
    return torch.from_numpy(chosen), float(counts[chosen].sum() / max(1, counts.sum()))


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """A full disk as one line that says how to go on."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise ConfigError(
            f"{folder}: there is no space left on the disk; what was done is kept. Make room, or "
            "move the folder and name it with --work, and run the same command again"
        ) from None


def minutes(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min"


def size(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.2f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"
