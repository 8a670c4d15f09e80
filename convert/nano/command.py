"""The command that makes the bundled model: `python -m nextn.convert.nano --out FILE`."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from ...core.backend.cpu.threads import default_threads
from ...core.errors import ConfigError
from . import losses
from .corpus import default_libraries
from .export import FILE_TYPES, read_weights, write_model
from .fusion import fuse_loops
from .nano_network import Network
from .nano_shapes import SHAPES
from .nano_vocabulary import NanoVocabulary
from .training import Trainer, TrainingCheckpoint, keep_freed_memory
from .training_data import Batches, TrainingData
from .training_schedule import ThreadCount, TrainingBudget

LENGTH, ROWS = 1024, 8
Number = TypeVar("Number", int, float)

_log = logging.getLogger("nextn.convert.nano")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m nextn.convert.nano", description=__doc__)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="GGUF file to write")
    add("--work", type=Path, help="folder of checkpoints; default: beside --out")
    add("--model", choices=sorted(SHAPES), default="nano")
    add("--library", type=Path, action="append", help="lib/pythonX.Y; may be given several times")
    packages = "folder of downloaded packages (.whl, .tar.gz); may be given several times"
    add("--packages", type=Path, action="append", default=[], help=packages)
    add("--start", type=Path, help="GGUF file made by this command, whose training goes on")
    add("--seed", type=int, default=1)
    add(
        "--minutes",
        type=positive(float),
        default=0.0,
        help="minutes of training, at whose end the schedule ends",
    )
    tokens = "tokens to train on; default without --minutes: 20 million"
    add("--tokens", type=positive(int), default=0, help=tokens)
    rate = "factor of the learning rates; below 1 where training goes on"
    add("--rate", type=positive(float), default=1.0, help=rate)
    add("--device", default="cpu")
    add("--threads", type=positive(int), default=default_threads())
    add("--length", type=positive(int), default=LENGTH, help="tokens of a row")
    add("--rows", type=positive(int), default=ROWS, help="rows of a batch")
    add(
        "--type",
        choices=sorted(FILE_TYPES),
        default="Q8_0",
        help="type of the matrices in the file",
    )
    return parser.parse_args(arguments)


def positive(kind: Callable[[str], Number]) -> Callable[[str], Number]:
    def read(text: str) -> Number:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
        return value

    return read


def main(arguments: Sequence[str] | None = None) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    options = parse(arguments)
    keep_freed_memory()
    options.out.parent.mkdir(parents=True, exist_ok=True)  # not after an hour of training
    if options.out.is_dir():
        raise ConfigError(f"--out {options.out} is a folder; give the file to write")
    trainer, prepared = prepare(options)
    if trainer.budget.is_long:
        fuse_loops()
    trainer.run()
    write_model(
        options.out,
        trainer.network,
        prepared.vocabulary,
        options.type,
        has_packages=bool(options.packages),
    )


def prepare(options: argparse.Namespace) -> tuple[Trainer, TrainingData]:
    shape = SHAPES[options.model]
    libraries = options.library or default_libraries()
    _log.info("reading %s", ", ".join(map(str, libraries)))
    torch.manual_seed(options.seed)
    network, vocabulary = Network(shape), None
    if options.start:  # checked before the corpus, whose reading takes minutes
        vocabulary = NanoVocabulary.of_gguf(options.start)
        read_weights(options.start, network)
    prepared = TrainingData.of(
        libraries, shape.vocab_size, packages=options.packages, vocabulary=vocabulary
    )
    work: Path = options.work or options.out.parent / f"{options.out.stem}.work"
    work.mkdir(parents=True, exist_ok=True)
    prepared.vocabulary.save(work / "tokenizer.json")
    names = [file.label for file in prepared.corpus.held_out]
    (work / "held_out.json").write_text(json.dumps(names, indent=0) + "\n")
    n_tokens = options.tokens or (0 if options.minutes else 20_000_000)
    budget = TrainingBudget(n_tokens, options.minutes, options.rate)
    fingerprint = prepared.fingerprint(shape, options.seed, options.length, options.rows)
    batches = Batches(
        lambda number: prepared.epoch(options.seed, number),
        length=options.length,
        ahead=losses.AHEAD,
        rows=options.rows,
        seed=options.seed,
    )
    trainer = Trainer(
        network,
        batches,
        budget,
        TrainingCheckpoint(work / f"{options.model}.pt", fingerprint),
        held_out=prepared.held_out_rows(options.length + losses.AHEAD),
        device=options.device,
        threads=ThreadCount(options.threads),
        report=_log.info,
    )
    _log.info(
        "%d files, %d held out, %.1f million tokens, %.2f million weights",
        len(prepared.files),
        len(names),
        sum(map(len, prepared.files)) / 1e6,
        sum(p.numel() for p in trainer.network.parameters()) / 1e6,
    )
    return trainer, prepared
