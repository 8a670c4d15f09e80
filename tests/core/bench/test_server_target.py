"""A server as a target: probed, timed, counted. The server is scripted."""

from __future__ import annotations

import pytest
from support.fake_server import LLAMA, OPENAI, PROMPT_N, ROUNDS, VLLM, FakeServer, Script

from nextn.core.bench.address import parse_address
from nextn.core.bench.dialects import CHAT, COMPLETIONS, NATIVE
from nextn.core.bench.record import Prompt, RunSettings, Sample
from nextn.core.bench.server_probe import probe
from nextn.core.bench.server_target import ServerTarget
from nextn.core.bench.wire import ServerError, Timeouts, Wire
from nextn.core.errors import ConfigError

TEXT = Prompt("a", "code", text="def f():", max_tokens=20)
CHATS = Prompt("b", "chat", turns=("hello", "more"), system="be short", max_tokens=20)
GREEDY = RunSettings()
QUICK = Timeouts(connect=2.0, silence=0.4)


def target_of(server: FakeServer, api: str = "auto", key: str = "") -> ServerTarget:
    wire = Wire(parse_address(server.url), key, QUICK)
    return ServerTarget("srv", wire, probe(wire, api=api, wait_s=5))


def run(target: ServerTarget, *prompts: Prompt, users: int = 1) -> list[Sample]:
    return list(target.run(prompts, GREEDY, users))


@pytest.mark.parametrize(
    ("kind", "name", "text", "chat", "slots"),
    [
        (LLAMA, "llama.cpp", NATIVE, None, 2),
        (VLLM, "vLLM", COMPLETIONS, CHAT, None),
        (OPENAI, "OpenAI-compatible", CHAT, CHAT, None),
    ],
)
def test_what_it_is_is_found_out(
    kind: str, name: str, text: str, chat: str | None, slots: int | None
) -> None:
    with FakeServer(Script(kind)) as server:
        service = target_of(server).service
        assert (service.kind, service.model, service.n_slots) == (name, "tiny", slots)
        assert service.manner.api == text
        assert (service.chat.api if service.chat else None) == chat
        assert service.has_counters == (kind != OPENAI)


def test_a_strict_server_gets_only_fields_that_it_knows() -> None:
    with FakeServer(Script(OPENAI)) as server:
        (sample,) = run(target_of(server), TEXT)
        body = server.script.requests[-1]
        assert body["max_completion_tokens"] == 20
        assert "ignore_eos" not in body
        assert body["messages"] == [{"role": "user", "content": "def f():"}]
        assert (sample.predicted_n, sample.error) == (20, "")


def test_loading_is_waited_for() -> None:
    with FakeServer(Script(loading=2)) as server:
        assert target_of(server).service.kind == "llama.cpp"
    with FakeServer(Script(loading=99)) as server:
        wire = Wire(parse_address(server.url), "", QUICK)
        with pytest.raises(ServerError, match="503: Loading model"):
            probe(wire, wait_s=0.3)


def test_a_model_that_is_not_served() -> None:
    with FakeServer(Script(models=("one", "two"))) as server:
        wire = Wire(parse_address(server.url), "", QUICK)
        assert probe(wire, model="two").model == "two"
        with pytest.raises(ConfigError, match="serves no model 'three'; it has one, two"):
            probe(wire, model="three")


def test_a_key_that_is_missing() -> None:
    with FakeServer(Script(key="k")) as server:
        with pytest.raises(ServerError, match="401: Invalid API Key; give its --api-key"):
            target_of(server)
        assert run(target_of(server, key="k"), TEXT)[0].predicted_n == 20


def test_counts_of_the_stream_are_those_of_the_server() -> None:
    with FakeServer() as server:
        target = target_of(server)
        samples = run(target, TEXT, CHATS)
        first = samples[0]
        rounds = [(min(n, 20), k) for n, k in ROUNDS]
        assert first.rounds is not None
        assert first.rounds >= len(rounds)
        assert first.drafts == 6
        assert (first.draft_n, first.draft_n_accepted) == (15, 10)
        assert first.accepted_per_pos == [5, 3, 2]
        assert first.prompt_n == PROMPT_N
        assert target.describe()["counters_agree"] is True
        assert target.describe()["counted_here"]["predicted"] == 60
        assert target.disagreements() == []


def test_a_server_that_counts_otherwise_is_seen() -> None:
    with FakeServer(Script(lie=5)) as server:
        target = target_of(server)
        run(target, TEXT)
        run(target, TEXT)
        assert target.disagreements() == ["drafted: 30 here, 40 there"]
        assert target.describe()["counters_agree"] is False


def test_turns_are_a_conversation() -> None:
    with FakeServer(Script(VLLM)) as server:
        samples = run(target_of(server), CHATS)
        assert [sample.turn for sample in samples] == [0, 1]
        messages = server.script.requests[-1]["messages"]
        assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
        assert messages[2]["content"] == samples[0].text


def test_turns_over_the_template_of_llama_cpp() -> None:
    with FakeServer() as server:
        run(target_of(server), CHATS)
        prompt = server.script.requests[-1]["prompt"]
        assert prompt.startswith("<system>be short<user>hello<assistant>t101")


def test_nothing_comes_from_caches() -> None:
    with FakeServer(Script(VLLM)) as server:
        run(target_of(server), TEXT, CHATS)
        _, _, text, *turns = [body["cache_salt"] for body in server.script.requests]
        assert len(turns) == 2
        assert turns[0] == turns[1] != text  # a conversation goes on, nothing else does
    with FakeServer() as server:
        run(target_of(server), TEXT)
        assert server.script.requests[-1]["cache_prompt"] is False


def test_drafts_of_vllm_come_from_its_counters() -> None:
    with FakeServer(Script(VLLM)) as server:
        target = target_of(server)
        (sample,) = run(target, TEXT)
        assert (sample.draft_n, sample.draft_n_accepted, sample.drafts) == (15, 10, 6)
        assert sample.accepted_per_pos == [5, 3, 2]
        assert sample.tokens is not None
        assert len(sample.tokens) == 20
        # What came from its counters is not compared with them.
        assert set(target.describe()["counted_here"]) == {"predicted", "prompt"}


def test_users_at_once() -> None:
    prompts = [Prompt(f"p{i}", "c", text="x", max_tokens=20) for i in range(9)]
    with FakeServer(Script(pause=0.01)) as server:
        target = target_of(server)
        samples = run(target, *prompts, users=4)
        assert sorted(sample.prompt for sample in samples) == [each.id for each in prompts]
        assert {sample.concurrency for sample in samples} == {4}
        assert 1 < server.script.most_running <= 4
        assert target.disagreements() == []
        assert target.warnings == ["it has 2 slots: of 4 requests, some wait for others"]


def test_who_stops_listening_ends_it() -> None:
    prompts = [Prompt(f"p{i}", "c", text="x", max_tokens=20) for i in range(50)]
    with FakeServer(Script(pause=0.01)) as server:
        target = target_of(server)
        for _ in target.run(prompts, GREEDY, 2):
            break
        target.close()
        assert server.script.texts < 10


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("error", "failed while writing: engine died"),
        ("break", "broke before the answer was complete"),
        ("silence", "no answer in time"),
        ("garbage", "an event that is no JSON"),
        ("empty", "ended without a text"),
        ("refuse", "answered 500: out of cheese"),
    ],
)
@pytest.mark.parametrize("users", [1, 3])
def test_a_text_that_fails_is_one_line_and_the_rest_goes_on(
    fault: str, expected: str, users: int
) -> None:
    prompts = [Prompt(f"p{i}", "c", text="x", max_tokens=20) for i in range(3)]
    with FakeServer(Script(fault=fault)) as server:
        target = target_of(server)
        samples = run(target, *prompts, users=users)
        assert len(samples) == 3
        for sample in samples:
            assert expected in sample.error
            assert "\n" not in sample.error
        assert target.disagreements() == []  # then counts are not compared


def test_a_failed_turn_is_the_last() -> None:
    with FakeServer(Script(fault="error")) as server:
        (sample,) = run(target_of(server), CHATS)
        assert sample.error


def test_all_at_once_is_one_chunk() -> None:
    with FakeServer(Script(VLLM, fault="all-at-once")) as server:
        (sample,) = run(target_of(server), TEXT)
        assert len(sample.chunks) == 1
        assert (sample.predicted_n, sample.decode_n) == (20, 0)


def test_time_is_seen_where_it_passes() -> None:
    script = Script(rounds=((3, 3),) * 9, pause=0.02)
    with FakeServer(script) as server:
        (sample,) = run(target_of(server), TEXT)
        assert [chunk.n for chunk in sample.chunks] == [1, 4, 4, 4, 4, 3]
        assert sample.ttft_ms >= 20
        assert sample.decode_ms >= 5 * 20
        assert sample.total_ms >= sample.decode_ms
