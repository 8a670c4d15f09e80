"""Every family whose checkpoints an MTP head can be taken from."""

from __future__ import annotations

from typing import Final

from . import deepseek, deepseek4, dots, exaone, glm, mimo, others, qwen, step
from .family import Family

FAMILIES: Final[dict[str, Family]] = {
    family.architecture: family
    for module in (qwen, glm, deepseek, deepseek4, dots, mimo, step, exaone, others)
    for family in module.FAMILIES
}
BY_MODEL_TYPE: Final[dict[str, str]] = {
    model_type: family.architecture
    for family in FAMILIES.values()
    for model_type in family.model_types
}
