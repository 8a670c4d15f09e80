"""GGUF files of networks that draft for another model: what each has to hold, whatever runs it."""

from .drafter_files import ARCHITECTURES, describe, is_drafter
from .drafter_shapes import DrafterDescription
from .drafter_tensors import TensorFaults, find_tensor_faults
from .target_fit import TargetSizes, fit_faults
from .token_map import DRAFT_TO_TARGET, map_faults, target_tokens

__all__ = [
    "ARCHITECTURES",
    "DRAFT_TO_TARGET",
    "DrafterDescription",
    "TargetSizes",
    "TensorFaults",
    "describe",
    "find_tensor_faults",
    "fit_faults",
    "is_drafter",
    "map_faults",
    "target_tokens",
]
