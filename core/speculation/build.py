"""The one speculator that an engine talks to, out of all that were asked for."""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import ConfigError
from .interface import Speculator
from .options import AUTO
from .table import SPECULATORS, Setting, make_speculator, resolve_types


def build_speculator(setting: Setting) -> Speculator | None:
    """None: nothing drafts. A ConfigError says which type cannot work with these files."""
    made = make_speculators(setting)
    if len(made) > 1:
        raise ConfigError("spec-type names several types, which cannot be joined yet; give one")
    return made[0] if made else None


def make_speculators(setting: Setting) -> list[Speculator]:
    """In the order of precedence."""
    return [make_speculator(name, setting) for name in spec_types(setting)]


def spec_types(setting: Setting) -> tuple[str, ...]:
    """What drafts for these files; `auto` takes only what is there."""
    names = resolve_types(setting)
    if setting.options.types == (AUTO,):
        return tuple(name for name in names if _is_built(name))
    return names


def _is_built(name: str) -> bool:
    return find_spec(f".{SPECULATORS[name]}", __package__) is not None
