"""The one speculator of an engine, from the options of the user."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from msgspec.structs import replace

from ..errors import ConfigError
from ..gguf.printable import printable_path
from .composite import CompositeSpeculator
from .cost_file import load_costs
from .drafters.prediction import PredictionDrafter
from .interface import Speculator
from .options import (
    AUTO,
    AUTO_MOD,
    DRAFT,
    DRAFTERS,
    NGRAM_MOD,
    NONE,
    NgramModSizes,
    SpecOptions,
    named_by_file,
)
from .policy.controller import Controller
from .policy.fixed import FixedPolicy
from .rounds import Policy
from .setting import Setting
from .trace import Trace


def build_speculator(setting: Setting) -> Speculator | None:
    """None: nothing drafts. A ConfigError says which type cannot work with these files."""
    made = make_speculators(setting)
    if not made:
        return None
    prediction = PredictionDrafter(setting.target.tokenizer.eog_ids)
    is_real = setting.options.synth_len is None and not setting.options.synth_rates
    files = setting.result_files if is_real else {}
    return CompositeSpeculator([prediction, *made], make_policy(setting.options), files)


def make_speculators(setting: Setting) -> list[Speculator]:
    """In the order of precedence."""
    options = setting.options
    if options.types == (AUTO,) and options.ngram_mod == NgramModSizes():
        setting = replace(setting, options=replace(options, ngram_mod=AUTO_MOD))
    return [make_speculator(name, setting) for name in resolve_types(setting)]


def make_speculator(name: str, setting: Setting) -> Speculator:
    module, _, function = DRAFTERS[name].partition(":")
    make: Callable[[Setting], Speculator]
    make = getattr(import_module(module, __package__), function or "make")
    return make(setting)


def resolve_types(setting: Setting) -> tuple[str, ...]:
    """What `auto` means for these files; other types as they are."""
    types = setting.options.types
    if types == (NONE,):
        return ()
    if types != (AUTO,):
        return named_by_file(types, setting.target.model.drafters)
    found = {NGRAM_MOD, *setting.target.model.drafters}
    if setting.draft is not None:
        found.add(DRAFT)
    return tuple(name for name in DRAFTERS if name in found)


def make_policy(options: SpecOptions) -> Policy:
    """The controller. Costs are frozen if their file is there; else it is written at the end."""
    if options.fixed:
        return FixedPolicy()
    path = None if options.costs is None else Path(options.costs)
    trace = None if options.trace is None else Trace(options.trace)
    if path is None:
        return Controller(trace=trace)
    if path.exists():
        return Controller(load_costs(path), trace)
    if not path.parent.is_dir():
        raise ConfigError(
            f"--spec-costs: {printable_path(path.parent)} is not a folder to write to"
        )
    return Controller(trace=trace, costs_file=path)
