"""MTP heads over some of the tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.running import load, random_tokens
from support.tiny_models import TinyModel

from specdec.core.backend.step import Piece, build_step

Tiny = Callable[..., TinyModel]
