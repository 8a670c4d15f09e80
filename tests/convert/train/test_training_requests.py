"""Requests for texts: they differ, repeat, and are whole sentences."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from nextn.convert.train.python_sources import is_judged
from nextn.convert.train.training_requests import (
    OWN_QUESTION,
    BuiltInRequests,
    FileRequests,
    PythonRequests,
)
from nextn.core.errors import ConfigError


def test_built_in_requests_are_many_and_repeat() -> None:
    source = BuiltInRequests(1, is_chat=True)
    made = [source.request(i) for i in range(1000)]
    assert [BuiltInRequests(1, is_chat=True).request(i) for i in range(1000)] == made
    texts = {prompt.turns[0] for prompt in made}
    assert len(texts) > 800
    assert not any("{" in text.split("```")[0] or not text.strip() for text in texts)
    kinds = Counter(prompt.category for prompt in made)
    assert set(kinds) == {OWN_QUESTION, "chat", "code", "summary", "edit"}
    assert min(kinds.values()) > 50
    judged = {text for prompt in source.held_out for text in prompt.turns}
    assert not judged & texts
    assert BuiltInRequests(2, is_chat=True).request(0) != made[0]


def test_openings_for_models_without_a_template() -> None:
    source = BuiltInRequests(1, is_chat=False)
    made = [source.request(i) for i in range(400)]
    assert {prompt.category for prompt in made} == {"prose", "code"}
    assert all(prompt.text and not prompt.turns for prompt in made)


@pytest.mark.exhaustive
def test_openings_for_the_bundled_model() -> None:
    source = PythonRequests(1)
    texts = [source.request(i).text for i in range(300)]
    assert [source.request(i).text for i in range(300)] == texts
    assert len(set(texts)) > 200
    assert not any(is_judged(text) for text in texts)


def test_a_file_of_lines_or_of_json(tmp_path: Path) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_text("".join(f"prompt {i}\n\n" for i in range(20)))
    source = FileRequests(lines, is_chat=True)
    judged = {prompt.turns[0] for prompt in source.held_out}
    trained = {source.request(i).turns[0] for i in range(100)}
    assert len(judged) == 3
    assert judged | trained == {f"prompt {i}" for i in range(20)}
    assert not judged & trained
    messages = tmp_path / "prompts.jsonl"
    messages.write_text(
        '{"prompt": "one"}\n{"messages": [{"role": "system", "content": "be brief"}, '
        '{"role": "user", "content": "two"}]}\n'
    )
    source = FileRequests(messages, is_chat=True)
    found = {source.request(0), *source.held_out}
    assert {(prompt.system, prompt.turns) for prompt in found} == {
        ("", ("one",)), ("be brief", ("two",)),
    }  # fmt: skip
    with pytest.raises(ConfigError, match="no file"):
        FileRequests(tmp_path / "none", is_chat=True)
