"""The built-in prompt sets, and parts of them."""

from __future__ import annotations

import pytest

from nextn.core.bench.workloads import BUILT_IN, built_in, selected
from nextn.core.errors import ConfigError

CATEGORIES = (
    "code", "edit", "explain", "summarise", "extract", "translate", "creative", "maths", "chat",
    "long",
)  # fmt: skip
# A changed prompt makes earlier reports incomparable: let it be on purpose.
HASHES = {"code": "225ac4566adb645d", "chat": "2e4140c69afc850d"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_sets(name: str) -> None:
    prompts = built_in(name)
    assert prompts.categories == CATEGORIES
    assert prompts.sha256[:16] == HASHES[name]
    assert all(len(prompt.turns) > 1 for prompt in prompts.prompts if prompt.category == "chat")
    longest = max(prompts.prompts, key=lambda prompt: len(prompt.text or prompt.turns[0]))
    assert longest.category == "long"


def test_parts_of_a_set() -> None:
    prompts = built_in("code")
    some = selected(prompts, ["maths", "code"], 2)
    assert [prompt.id for prompt in some.prompts] == ["code-1", "code-2", "maths-1", "maths-2"]
    assert len(selected(prompts, [], 1).prompts) == len(CATEGORIES)
    with pytest.raises(ConfigError, match="did you mean maths"):
        selected(prompts, ["math"], None)
