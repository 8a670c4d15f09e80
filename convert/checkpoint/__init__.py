"""Checkpoints of `transformers`: a folder (or repository) of safetensors files and their JSON."""

from ...core.hub.http_client import RemoteError
from .folder import FilePlace, ModelCheckpoint
from .repository import open_checkpoint, open_place
from .safetensors import StoredTensor

__all__ = [
    "FilePlace",
    "ModelCheckpoint",
    "RemoteError",
    "StoredTensor",
    "open_checkpoint",
    "open_place",
]
