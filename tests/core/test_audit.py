"""The auditor finds what speculation changed, and finds nothing where it changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from support.drafters import Toy, repeats
from support.running import random_tokens
from support.tiny_models import TinyModel

import nextn.core
from nextn.core import runtime as runtime_module
from nextn.core.audit import RowRecorder, Verdict, audit
from nextn.core.backend.interface import HostOutput
from nextn.core.engine.sequence import Sequence
from nextn.core.generation import GenerateParams
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams

Tiny = Callable[..., TinyModel]
GREEDY = SamplingParams(temperature=0.0)
PROMPT = random_tokens(12, seed=5, n_vocab=256) * 2
N = 40


@pytest.fixture(params=["qwen3", "qwen35"])
def runtime(
    request: pytest.FixtureRequest, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Runtime]:
    """Drafts after each token what came after it before; often wrong."""
    toy = Toy(lambda text, longest: (repeats(text, longest) or text[-1:])[:4])
    monkeypatch.setattr(runtime_module, "build_speculator", lambda _setting: toy)
    with nextn.core.load(tiny(request.param).path, "cpu", n_ctx=128) as loaded:
        yield loaded


def write(runtime: Runtime, params: GenerateParams) -> RowRecorder:
    recorder = RowRecorder()
    assert list(runtime.generate(PROMPT, params, on_row=recorder))
    return recorder


def check(
    runtime: Runtime, how: SamplingParams = GREEDY, **more: Any
) -> tuple[RowRecorder, Verdict]:
    params = GenerateParams(how, max_tokens=N, **more)
    recorder = write(runtime, params)
    assert runtime.stats.draft_n > 0
    return recorder, audit(runtime, PROMPT, params, recorder.rows)


@pytest.mark.parametrize(
    ("how", "more"),
    [
        (GREEDY, {}),
        (SamplingParams(seed=3, temperature=1.5), {}),
        (SamplingParams(seed=3, mirostat=2), {}),
        (SamplingParams(seed=3, temperature=1.5, repeat_penalty=1.2, dry_multiplier=0.8), {}),
        (SamplingParams(seed=3, temperature=1.5), {"grammar": 'root ::= ("ab" | "ba")+'}),
        (GREEDY, {"ignore_eos": True, "logprobs": 2}),
    ],
    ids=["greedy", "sampled", "mirostat", "penalties", "grammar", "logprobs"],
)
def test_speculation_changes_nothing(
    runtime: Runtime, how: SamplingParams, more: dict[str, Any]
) -> None:
    recorder, verdict = check(runtime, how, **more)
    assert verdict == Verdict(len(recorder.rows), None)
    assert verdict.n_tokens > 0
    assert runtime.stats.draft_n == 0  # the second run was a plain one
    assert runtime.stats.cached_n == 0
    assert runtime.stats.steps == verdict.n_tokens


def test_what_a_witness_keeps(runtime: Runtime) -> None:
    recorder = write(runtime, GenerateParams(GREEDY, max_tokens=N))
    text = [row.token for row in recorder.rows]
    logits = runtime.logits([*PROMPT, *text])[len(PROMPT) - 1 : -1]
    for row, own in zip(recorder.rows, logits, strict=True):
        order = np.argsort(-own, kind="stable")[:5]
        assert row.best == tuple((int(token), float(own[token])) for token in order)
        assert row.margin == row.best[0][1] - row.best[1][1]
        assert row.token == order[0]
        assert row.source in ("toy", "target")


class Flip:
    """One bit of one logit in the second row of the first step that verifies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, runtime: Runtime, token: int) -> None:
        self.n_flipped, self.token = 0, token
        compile_ = runtime.backend.compile
        monkeypatch.setattr(
            runtime.backend, "compile", lambda *args, **more: self.around(compile_(*args, **more))
        )

    def around(self, run: Callable[..., HostOutput]) -> Callable[..., HostOutput]:
        def corrupted(step: Any) -> HostOutput:
            output = run(step)
            if len(step.out_rows) > 1 and not self.n_flipped:
                self.n_flipped += 1
                output.logits[0].view(np.uint32)[self.token] ^= 1
            return output

        return corrupted


@pytest.mark.parametrize("token", [0, 300, 511])
def test_a_logit_that_differs_in_its_last_bit_is_found(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, token: int
) -> None:
    flip = Flip(monkeypatch, runtime, token)
    recorder, verdict = check(runtime)
    assert flip.n_flipped == 1
    assert not verdict.is_lossless
    found = verdict.difference
    assert found is not None
    assert found.written is not None
    assert found.plain is not None
    assert found.same_token  # the last bit decides nothing here
    assert not found.same_logits
    assert found.place == verdict.n_tokens
    assert found.written == recorder.rows[found.place]
    assert found.plain.margin > 0


def test_a_wrong_token_that_was_accepted_is_found(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own logits are right; those after it are not looked at any more."""
    right, place = Sequence.pick, 9
    fired: list[int] = []

    def wrong(sequence: Sequence, output: HostOutput, row: int) -> int:
        token = right(sequence, output, row)
        if len(sequence.tokens) - sequence.n_prompt == place and not fired:
            fired.append(token)
            return (token + 1) % 256
        return token

    monkeypatch.setattr(Sequence, "pick", wrong)
    _, verdict = check(runtime)
    found = verdict.difference
    assert found is not None
    assert (found.place, verdict.n_tokens) == (place, place)
    assert (found.same_token, found.same_logits) == (False, True)
    assert found.written is not None
    assert found.plain is not None
    assert found.plain.token == fired[0] != found.written.token
    assert found.plain.best == found.written.best


@pytest.mark.parametrize("missing", [1, 5])
def test_a_text_that_ends_too_soon_or_too_late_is_found(runtime: Runtime, missing: int) -> None:
    params = GenerateParams(GREEDY, max_tokens=N)
    rows = write(runtime, params).rows
    short = audit(runtime, PROMPT, params, rows[:-missing])
    assert short.difference is not None
    assert (short.difference.place, short.difference.written) == (N - missing, None)
    assert short.difference.plain == rows[-missing].__class__(
        rows[-missing].token, "target", rows[-missing].digest, rows[-missing].best
    )
    long = audit(runtime, PROMPT, params, [*rows, rows[0]])
    assert long.difference is not None
    assert (long.difference.place, long.difference.plain) == (N, None)


def test_after_an_audit_drafts_go_on(runtime: Runtime) -> None:
    first, _ = check(runtime)
    again, verdict = check(runtime)
    assert verdict.is_lossless
    assert [row.digest for row in again.rows] == [row.digest for row in first.rows]
