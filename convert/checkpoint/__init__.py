"""Checkpoints of `transformers`: a folder (or repository) of safetensors files and their JSON."""

from .failures import RemoteError
from .folder import Checkpoint, Place
from .places import open_checkpoint, open_place
from .safetensors import StoredTensor

__all__ = [
    "Checkpoint",
    "Place",
    "RemoteError",
    "StoredTensor",
    "open_checkpoint",
    "open_place",
]
