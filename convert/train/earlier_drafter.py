"""A drafter that begins as an earlier one of the same command: `--start-from FILE`."""

from __future__ import annotations

from pathlib import Path

import torch

from ...core.errors import ConfigError
from ...core.gguf.reader import open_gguf
from ...core.models.drafters.training_record import read_training_record
from .eagle3_network import Eagle3Network
from .training_target import TrainingTarget


def start_from_drafter(network: Eagle3Network, target: TrainingTarget, path: Path) -> None:
    """Its head is chosen anew: of the tokens that the texts at hand use most."""
    with open_gguf(path) as file:
        if read_training_record(file) is None:
            raise ConfigError(f"--start-from {file.label}: this command did not train it")
        layers = [int(each) for each in file.metadata.ints("target_layers", ())]
        if layers != list(network.layers):
            raise ConfigError(
                f"--start-from {file.label}: it reads layers {layers} of its target, and drafters "
                f"of this model read {list(network.layers)}"
            )
        stored = network.tensors(target)
        with torch.no_grad():
            for name, parameter in network.stored_parameters():
                found = file.tensors.get(name)
                if found is None or found.shape != tuple(stored[name].shape):
                    shape = "not there" if found is None else f"of shape {found.shape}"
                    raise ConfigError(
                        f"--start-from {file.label}: {name} is {shape}; for this model it has "
                        f"{tuple(stored[name].shape)}"
                    )
                parameter.copy_(torch.from_numpy(found.floats().copy()))
            network.fc.weight.div_(network.scale)
