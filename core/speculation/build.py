"""From what the user asked for to the one speculator that an engine talks to."""

from __future__ import annotations

from .chain import Chain
from .interface import Speculator
from .table import Setting, make_speculator, resolve_types


def build_speculator(setting: Setting) -> Speculator | None:
    """None: no speculation."""
    types = resolve_types(setting)
    return Chain([make_speculator(name, setting) for name in types]) if types else None
