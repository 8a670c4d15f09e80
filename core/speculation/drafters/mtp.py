"""`mtp`: the model's own multi-token prediction heads draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..options import MTP
from .hidden_state import HiddenStateDrafter

if TYPE_CHECKING:
    from ..setting import Setting


def make(setting: Setting) -> HiddenStateDrafter:
    heads = setting.target.model.nextn
    if not heads:
        raise ConfigError(
            f"--spec-type mtp: {setting.target.file.label} has no MTP head; give a file "
            "that holds one with -md"
        )
    return HiddenStateDrafter(MTP, heads, setting)
