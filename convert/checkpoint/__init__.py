"""Checkpoints of `transformers`: a folder (or repository) of safetensors files and their JSON."""

from .folder import Checkpoint, open_checkpoint
from .safetensors import StoredTensor

__all__ = ["Checkpoint", "StoredTensor", "open_checkpoint"]
