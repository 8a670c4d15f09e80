"""Vision towers in checkpoints of `transformers`, to mmproj files."""

from .tower_layout import find_tower_layout
from .tower_planning import plan_tower

__all__ = ["find_tower_layout", "plan_tower"]
