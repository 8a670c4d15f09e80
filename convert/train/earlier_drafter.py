"""A drafter that begins as an earlier one of the same command: `--start-from FILE`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...core.errors import ConfigError
from ...core.gguf.reader import GgufFile, open_gguf
from ...core.models.drafters.training_record import read_training_record
from .eagle3_network import Eagle3Network


def check_drafter(path: Path, sizes: Mapping[str, int], layers: Sequence[int]) -> None:
    """Before anything slow: a ConfigError says why a drafter with these values of keys, which reads
    these layers, cannot begin as that of the file."""
    with open_gguf(path) as file:
        if read_training_record(file) is None:
            raise ConfigError(f"--start-from {file.label}: this command did not train it")
        found: dict[str, object] = {key: file.metadata.int(key) for key in sizes}
        found["target_layers"] = [*file.metadata.ints("target_layers")]
        for key, value in {**sizes, "target_layers": [*layers]}.items():
            if found[key] != value:
                raise ConfigError(
                    f"--start-from {file.label}: its {key} is {found[key]}, and that of drafters "
                    f"for this model {value}"
                )


def start_from_drafter(network: Eagle3Network, path: Path) -> None:
    """Its head is chosen anew: of the tokens that the texts at hand use most."""
    with open_gguf(path) as file, torch.no_grad():
        for name, parameter in network.stored_parameters():
            parameter.copy_(_stored(file, name, parameter))
        network.fc.weight.div_(network.scale)


def _stored(file: GgufFile, name: str, like: Tensor) -> Tensor:
    found = file.tensors.get(name)
    if found is None or found.shape != tuple(like.shape):
        is_there = "not there" if found is None else f"of shape {found.shape}"
        raise ConfigError(f"--start-from {file.label}: {name} is {is_there}: it is damaged")
    return torch.from_numpy(found.floats().copy())
