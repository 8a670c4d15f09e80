"""Thoughts that are drafted for in their own way: the marks change who drafts, and no text."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from nextn.core import load, nano
from nextn.core.errors import ConfigError
from nextn.core.generation import GenerateParams
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import SpecOptions
from nextn.core.speculation.request_spec import RequestSpec
from nextn.core.tokenizer import thinking

OFF, ALL = RequestSpec(types=("none",)), RequestSpec()
THOUGHT, ANSWER = "def a(b):\n    return b\n" * 3, "x = [1, 2, 3, 1, 2, 3, 1, 2, 3]\n"


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    """Always drafts; "@" and "$" open and close thoughts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thinking, "_PAIRS", (("@", "$"),))
        with load(nano.path(), "cpu", spec=SpecOptions(fixed=True)) as runtime:
            yield runtime


def written(runtime: Runtime, spec: RequestSpec, thinking_spec: RequestSpec | None) -> list[str]:
    """Sources of the tokens, with the marks between."""
    text = f"@{THOUGHT}${ANSWER}"
    params = GenerateParams(
        SamplingParams(temperature=0.0), max_tokens=400,
        grammar=f"root ::= {json.dumps(text)}", spec=spec, thinking_spec=thinking_spec,
    )  # fmt: skip
    events = list(runtime.generate("# ", params))
    assert "".join(event.text for event in events) == text
    return [event.text if event.text in ("@", "$") else event.source for event in events]


@pytest.mark.parametrize(
    ("spec", "thinking_spec", "thought_drafts", "answer_drafts"),
    [(ALL, OFF, False, True), (OFF, ALL, True, False), (ALL, None, True, True)],
)
def test_each_part_is_drafted_for_as_it_wants(
    runtime: Runtime,
    spec: RequestSpec,
    thinking_spec: RequestSpec | None,
    thought_drafts: bool,
    answer_drafts: bool,
) -> None:
    sources = written(runtime, spec, thinking_spec)
    end = sources.index("$")
    # The step that reads a mark was drafted for before it was there.
    thought, answer = set(sources[2:end]), set(sources[end + 2 :])
    assert (thought > {"target"}) is thought_drafts
    assert (answer > {"target"}) is answer_drafts


def test_only_some_may_draft_a_thought(runtime: Runtime) -> None:
    sources = written(runtime, ALL, replace(ALL, types=("ngram-mod",)))
    end = sources.index("$")
    assert "mtp" not in sources[2:end]
    assert "mtp" in sources[end + 2 :]


def test_a_model_that_does_not_think_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinking, "_PAIRS", ())
    with load(nano.path(), "cpu") as runtime, pytest.raises(ConfigError, match="open and close"):
        next(iter(runtime.generate("x", GenerateParams(thinking_spec=OFF))))
