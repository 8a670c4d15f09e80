"""From what the user asked for to the one speculator that an engine talks to."""

from __future__ import annotations

from .chain import Chain
from .controller import Controller
from .interface import Speculator
from .options import SpecOptions
from .plans import FixedPolicy, Policy
from .table import Setting, make_speculator, resolve_types


def build_speculator(setting: Setting) -> Speculator | None:
    """None: no speculation."""
    types = resolve_types(setting)
    if not types:
        return None
    speculators = [make_speculator(name, setting) for name in types]
    return Chain(speculators, make_policy(setting.options))


def make_policy(options: SpecOptions) -> Policy:
    return FixedPolicy() if options.fixed else Controller()
