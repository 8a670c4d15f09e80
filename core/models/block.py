"""Blocks of a model, and what makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ..backend.interface import Ops, Packed, Rows, State
from ..backend.step import Step
from .layout import Layout
from .model_weights import Weights


class Block(Protocol):
    def __call__(self, ops: Ops, x: Rows, step: Step, state: State, *more: Any) -> Rows: ...


class Ffn(Protocol):
    def __call__(self, ops: Ops, a: Packed, x: Rows | None) -> Rows:
        """x, if any, plus what the layer makes of the normed rows a."""


BlockBuilder = Callable[[Weights, Layout], Block]
