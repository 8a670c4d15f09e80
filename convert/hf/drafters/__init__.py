"""Checkpoints of drafters, in the layouts that they are published in, to GGUF files for `-md`."""

from .draft_layouts import find_draft_layout, refuse_drafter
from .draft_planning import plan_drafter
from .draft_target import DraftTarget, open_target

__all__ = ["DraftTarget", "find_draft_layout", "open_target", "plan_drafter", "refuse_drafter"]
