"""What a checkpoint is, a model or a drafter, decides how it is planned."""

from __future__ import annotations

from pathlib import Path

from ..checkpoint import ModelCheckpoint
from .conversion import Conversion, Options
from .drafters import find_draft_layout, plan_drafter
from .drafters.draft_target import FLAG
from .model_planning import plan_model
from .towers import plan_tower


def plan_conversion(checkpoint: ModelCheckpoint, folder: Path, options: Options) -> Conversion:
    if options.mmproj:
        return plan_tower(checkpoint, folder, options)
    layout = find_draft_layout(checkpoint)
    if layout is None:
        plan = plan_model(checkpoint, folder, options)
        if options.target is not None:
            plan.notes.append(f"{FLAG} is not used: it is for drafters, this is a model")
        return plan
    return plan_drafter(checkpoint, folder, options, layout)
