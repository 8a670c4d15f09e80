"""A forward pass of a model, and what a backend makes of it."""

from __future__ import annotations

from collections.abc import Callable

from ..step import Step
from .ops import Ops
from .rows import HostOutput, Output, Taps
from .states import State

Forward = Callable[[Ops, Step, State, Taps], Output]
Run = Callable[[Step], HostOutput]
RunRows = Callable[[Step], Output]
