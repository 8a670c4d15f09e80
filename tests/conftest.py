"""Fixtures that several folders share."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from support.tiny_models import TinyModel

os.environ.setdefault("SPEC_TOKEN_COUNTS", "0")  # what random models write is worth nothing


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., TinyModel]:
    """Tiny models by family name, each built once: `tiny("qwen35", mtp=True)`."""
    folder = tmp_path_factory.mktemp("tiny")

    @cache
    def build(name: str, mtp: bool = False, quantise: str = "F32") -> TinyModel:
        from support.tiny_models import build_tiny

        return build_tiny(name, folder, mtp=mtp, quantise=quantise)

    return build


@pytest.fixture(params=["torch", "cpu"])
def device(request: pytest.FixtureRequest) -> str:
    """Every backend that runs here."""
    name: str = request.param
    return name
