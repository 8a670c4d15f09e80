"""Checkpoints with vision towers, made once for a file of tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.towers import TinyVisionModel, build_vision_model


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyVisionModel]:
    made: dict[str, TinyVisionModel] = {}

    def build(name: str) -> TinyVisionModel:
        if name not in made:
            made[name] = build_vision_model(name, tmp_path_factory.mktemp(name))
        return made[name]

    return build
