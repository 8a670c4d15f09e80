"""Drafters whose networks a model has, from its own file or from that of `-md`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import ConfigError
from ..options import ASSISTANT, DFLASH, EAGLE3, MTP
from .hidden_state import HiddenStateDrafter

if TYPE_CHECKING:
    from ..setting import Setting


def make_mtp(setting: Setting) -> HiddenStateDrafter:
    label = setting.target.file.label
    return _make(MTP, setting, f"{label} has no MTP head; give a file that holds one with -md")


def make_eagle3(setting: Setting) -> HiddenStateDrafter:
    return _make(EAGLE3, setting, "give the file of an EAGLE3 drafter for the model with -md")


def make_dflash(setting: Setting) -> HiddenStateDrafter:
    without = "give the file of a DFlash or DSpark drafter for the model with -md"
    return _make(DFLASH, setting, without)


def make_assistant(setting: Setting) -> HiddenStateDrafter:
    return _make(ASSISTANT, setting, "give the file of an assistant for the model with -md")


def _make(name: str, setting: Setting, without: str) -> HiddenStateDrafter:
    networks = setting.target.model.drafters.get(name)
    if not networks:
        raise ConfigError(f"--spec-type {name}: {without}")
    return HiddenStateDrafter(name, networks, setting)
