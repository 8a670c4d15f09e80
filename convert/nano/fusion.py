"""Chains of elementwise operations as one loop each, where a compiler for them is at hand.

A function under `@fused` is plain torch. `fuse_loops()` lets `torch.compile` take its place: that
costs minutes at the first run of a shape, so only long trainings do it.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")

_SHAPES = 64  # of one function: batches of several sizes, with gradients and without
_compiled = False


def fused(plain: Callable[P, R]) -> Callable[P, R]:
    @functools.cache  # torch.compile takes seconds to import
    def fast() -> Callable[P, R]:
        return torch.compile(plain, dynamic=False)

    @functools.wraps(plain)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        return (fast() if _compiled else plain)(*arguments, **named)

    return call


def fuse_loops() -> bool:
    """Whether functions are compiled from now on: on a CPU that needs a C++ compiler."""
    global _compiled
    _compiled = torch.cuda.is_available() or any(map(shutil.which, ("g++", "clang++", "c++")))
    if _compiled:
        torch._dynamo.config.recompile_limit = _SHAPES
    return _compiled
