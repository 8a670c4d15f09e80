"""Train a drafter for the bundled model: `python -m nextn.convert.train.draft_training eagle3`.

The target writes the texts, which takes a minute or two; then one network drafts from places in
them and learns the target's distributions there.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ... import core
from ...core.errors import ConfigError
from ...core.speculation.options import SpecOptions
from .dflash_network import DFlashNetwork
from .draft_export import DraftingNetwork, write_drafter
from .draft_texts import LENGTH, draft_texts
from .draft_trainer import N_HELD_OUT, DraftTrainer, ReadText
from .drafter_shape import DFLASH, EAGLE3
from .eagle3_network import Eagle3Network
from .one_line_errors import in_one_line
from .opening_lines import OpeningLines
from .python_sources import default_library, training_texts
from .training_schedule import TrainingBudget
from .training_target import TrainingTarget, balance, read_features

NETWORKS: dict[str, Callable[[TrainingTarget, Tensor], DraftingNetwork]] = {
    "eagle3": lambda target, scale: Eagle3Network(EAGLE3, target, scale),
    "dflash": lambda target, scale: DFlashNetwork(DFLASH, target, scale),
    "dspark": lambda target, scale: DFlashNetwork(DFLASH, target, scale, rank=RANK),
}
RANK = 64  # of a DSpark drafter's correction
LEAST = 20  # tokens of a text

Number = TypeVar("Number", int, float)

_log = logging.getLogger("nextn.convert.train")


def read_texts(target: TrainingTarget, runtime: core.Runtime, n: int, seed: int) -> list[ReadText]:
    _log.info("reading %s", default_library())
    lines = OpeningLines.of(training_texts(default_library()))
    _log.info("the target writes %d texts", n)
    texts = [text for text in draft_texts(runtime, lines, n, seed) if len(text) > LEAST]
    found = read_features(runtime, target.layers, texts)
    return [ReadText(torch.tensor(tokens), rows) for tokens, rows in zip(texts, found, strict=True)]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m nextn.convert.train.draft_training", description=__doc__
    )
    add = parser.add_argument
    add("network", choices=sorted(NETWORKS))
    add("--out", type=Path, required=True, help="GGUF file to write")
    add("--minutes", type=positive(float), default=20.0, help="minutes of training")
    add("--texts", type=positive(int), default=6000, help="number of texts to train on")
    add("--held-out", type=positive(int), default=N_HELD_OUT, help="texts kept to measure on")
    add("--kept", type=Path, help="file of texts and features; made if it is not there")
    add("--start", type=Path, help="the .pt file beside an --out, from which training goes on")
    add("--rate", type=positive(float), default=1.0, help="factor of the learning rates")
    add("--seed", type=int, default=1)
    threads = "threads; more than one help only where no other program computes"
    add("--threads", type=positive(int), default=1, help=threads)
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
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    spec = SpecOptions(types=("none",))
    with core.load(None, "cpu", n_ctx=2 * LENGTH, threads=options.threads, spec=spec) as runtime:
        target = TrainingTarget(runtime)
        texts = kept_texts(options, target, runtime)
    scale = balance([text.features for text in texts[: options.held_out]], target.width)
    network = NETWORKS[options.network](target, scale)
    budget = TrainingBudget(minutes=options.minutes, rate=options.rate)
    if options.start:
        network.load_state_dict(started(options.start, network))
    trainer = DraftTrainer(
        network, target, texts, budget, n_held_out=options.held_out, seed=options.seed
    )

    def save() -> None:
        torch.save(network.state_dict(), options.out.with_suffix(".pt"))
        write_drafter(options.out, network, target)

    trainer.run(save)
    _log.info("held out %.4f", trainer.measure())


def started(path: Path, network: DraftingNetwork) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(path, weights_only=True)
    shapes = {name: value.shape for name, value in network.state_dict().items()}
    if {name: value.shape for name, value in state.items()} != shapes:
        raise ConfigError(f"{path} is of another network than {network.architecture}")
    return state


def kept_texts(
    options: argparse.Namespace, target: TrainingTarget, runtime: core.Runtime
) -> list[ReadText]:
    path: Path | None = options.kept
    if path is not None and path.exists():
        kept = [ReadText(*pair) for pair in torch.load(path, weights_only=True)]
        if any(text.features.shape[1] != target.n_features for text in kept):
            raise ConfigError(f"{path} was made for another model; give another --kept")
        return kept
    texts = read_texts(target, runtime, options.texts, options.seed)
    if path is not None:
        torch.save([(text.tokens, text.features) for text in texts], path)
    return texts


if __name__ == "__main__":
    in_one_line("python -m nextn.convert.train.draft_training", main)
