"""Our own server, measured over HTTP: its counts are those of its /metrics, and of a run here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from support.serving import Server, nano_server, running

from nextn.core import nano
from nextn.core.bench.local import LocalTarget
from nextn.core.bench.prompt_tokens import PromptRenderer
from nextn.core.bench.record import Prompt, RunSettings, Sample
from nextn.core.bench.servers import ServerRequests, open_servers, parse_places
from nextn.core.bench.variants import common_options, parse_variant
from nextn.core.bench.workloads import built_in, selected
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime

VARIANT = parse_variant("ngram-mod,mtp:n=3,fixed")
SETTINGS = RunSettings(max_tokens=24, ignore_eos=True)
APIS = ("native", "completions", "chat")
USERS = (1, 4)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(nano_server(n=max(USERS), spec=VARIANT.options)) as found:
        yield found


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with load_runtime(nano.path(), "cpu", n_ctx=2048, spec=common_options([VARIANT])) as found:
        yield found


def prompts(*, as_turns: bool) -> list[Prompt]:
    """`as_turns`: as the chat API asks for a text that is to be continued."""
    some = selected(built_in("code"), ("code", "edit", "maths", "chat"), 1).prompts
    if not as_turns:
        return list(some)
    return [
        Prompt(each.id, each.category, turns=each.turns or (each.text,), system=each.system)
        for each in some
    ]


def in_order(samples: Sequence[Sample]) -> list[Sample]:
    assert [sample.error for sample in samples if sample.error] == []
    return sorted(samples, key=lambda sample: (sample.prompt, sample.turn))


def counts(sample: Sample) -> tuple[object, ...]:
    return (
        sample.prompt, sample.turn, sample.tokens, sample.prompt_n, sample.predicted_n,
        sample.stop_reason, sample.rounds, sample.drafts, sample.draft_n, sample.draft_n_accepted,
        sample.drafted_per_pos, sample.accepted_per_pos, [chunk.n for chunk in sample.chunks],
    )  # fmt: skip


@pytest.mark.parametrize("users", USERS)
@pytest.mark.parametrize("api", APIS)
def test_it_counts_as_its_metrics_and_as_a_run_here(
    server: Server, runtime: Runtime, api: str, users: int
) -> None:
    wanted = prompts(as_turns=False)
    (target,) = open_servers(ServerRequests(parse_places([server.url], []), api=api))
    there = in_order(list(target.run(wanted, SETTINGS, users)))
    local = LocalTarget(runtime, VARIANT)
    has_template = PromptRenderer(runtime).has_template
    wanted = prompts(as_turns=api == "chat" and has_template)
    here = in_order(list(local.run(wanted, SETTINGS, users)))
    local.close()
    assert [counts(sample) for sample in there] == [counts(sample) for sample in here]
    details = target.describe()
    assert target.disagreements() == []
    ours, theirs = details["counted_here"], details["counters"]
    for name in ("predicted", "prompt", "drafts", "drafted", "accepted"):
        assert ours[name] == theirs[name] > 0, name
    assert ours["per_pos"] == theirs["per_pos"]
    by_type = theirs["by_type"]
    assert "mtp" in by_type
    for name in ("drafted", "accepted"):
        assert sum(each[name] for each in by_type.values()) == ours[name]
    assert target.warnings == []


def test_a_repeated_prompt_does_not_find_its_own_answer(server: Server) -> None:
    """Its n-gram pools know whose texts they hold, and every conversation here is another's."""
    (target,) = open_servers(ServerRequests(parse_places([server.url], [])))
    wanted = prompts(as_turns=False)
    runs = [in_order(list(target.run(wanted, SETTINGS))) for _ in range(3)]
    for run in runs[1:]:
        assert [counts(sample) for sample in run] == [counts(sample) for sample in runs[0]]
