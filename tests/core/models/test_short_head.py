"""MTP heads over some of the tokens."""

from __future__ import annotations

from collections.abc import Callable

from support.tiny_models import TinyModel

Tiny = Callable[..., TinyModel]
