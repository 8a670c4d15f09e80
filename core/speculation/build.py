"""From what the user asked for to the one speculator that an engine talks to."""

from __future__ import annotations

from dataclasses import replace

from .chain import Chain
from .controller import Controller
from .interface import Speculator
from .options import AUTO, AUTO_MOD, NgramModSizes, SpecOptions
from .plans import FixedPolicy, Policy
from .table import Setting, make_speculator, resolve_types


def build_speculator(setting: Setting) -> Speculator | None:
    """None: nothing drafts. A ConfigError says which type cannot work with these files."""
    made = make_speculators(setting)
    return Chain(made, make_policy(setting.options)) if made else None


def make_speculators(setting: Setting) -> list[Speculator]:
    """In the order of precedence."""
    options = setting.options
    if options.types == (AUTO,) and options.ngram_mod == NgramModSizes():
        setting = replace(setting, options=replace(options, ngram_mod=AUTO_MOD))
    return [make_speculator(name, setting) for name in resolve_types(setting)]


def make_policy(options: SpecOptions) -> Policy:
    return FixedPolicy() if options.fixed else Controller()
