"""What users say of servers and peers."""

from __future__ import annotations

import pytest
from support.fake_server import PROMPT_N, FakeServer, Script

from nextn.core.bench.record import (
    BenchReport,
    Configuration,
    Prompt,
    PromptSet,
    RunSettings,
    Sample,
)
from nextn.core.bench.reporting import plains_of
from nextn.core.bench.servers import (
    ServerRequests,
    finish_servers,
    open_servers,
    parse_ask,
    parse_peer,
    parse_places,
    unique_names,
    without_keys,
)
from nextn.core.errors import ConfigError

TEXT = Prompt("a", "code", text="def f():", max_tokens=20)


def test_places() -> None:
    one, two = parse_places(["http://a:8080/v1", "big=https://b.example/x"], ["k1", "k2"])
    assert (one.name, one.api_key, one.address.shown) == ("a:8080", "k1", "http://a:8080")
    assert (two.name, two.api_key, two.address.shown) == ("big", "k2", "https://b.example/x")


def test_one_key_for_all_or_one_for_each() -> None:
    urls = ["http://a", "http://b", "http://c"]
    assert [place.api_key for place in parse_places(urls, ["k"])] == ["k", "k", "k"]
    with pytest.raises(ConfigError, match="2 keys for 3 servers"):
        parse_places(urls, ["k", "l"])


@pytest.mark.parametrize(
    ("text", "name", "extra"),
    [
        ("none", "none", {"speculative": {"off": True}}),
        ("mtp:n=3,p=0.5", "mtp:n=3,p=0.5",
         {"speculative": {"types": ["mtp"], "n_max": 3, "p_min": 0.5}}),
        ('hot={"temperature": 1}', "hot", {"temperature": 1}),
    ],
)  # fmt: skip
def test_asks(text: str, name: str, extra: dict[str, object]) -> None:
    ask = parse_ask(text)
    assert (ask.name, ask.extra) == (name, extra)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', "give it a name"),
        ('x={"a"', "ask x: no JSON"),
        ('x={"stream": false}', "stream is set by the benchmark"),
        ("nonsense", "nonsense"),
    ],
)
def test_wrong_asks(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_ask(text)


def test_peers() -> None:
    assert parse_peer("xllamacpp").is_plain
    peer = parse_peer("xllamacpp:mtp:n=2")
    assert (peer.name, peer.options.draft_n_max) == ("xllamacpp:mtp:n=2", 2)
    with pytest.raises(ConfigError, match="no controller"):
        parse_peer("xllamacpp:auto")
    with pytest.raises(ConfigError, match="the only one is xllamacpp"):
        parse_peer("ollama")


def test_asks_reach_the_server() -> None:
    with FakeServer() as server:
        places = parse_places([server.url], [])
        targets = open_servers(ServerRequests(places, (parse_ask("none"), parse_ask("mtp:n=2"))))
        assert [target.name for target in targets] == ["none", "mtp:n=2"]
        # llama.cpp ignores it, which a reader of the report should know.
        assert all("may ignore" in target.warnings[0] for target in targets)
        for target in targets:
            manner = target.service.manner
            assert "speculative" in manner.extra
            assert "speculative" in target.describe()["request"]


def test_two_of_one_name() -> None:
    with FakeServer() as server:
        targets = open_servers(ServerRequests(parse_places([server.url, server.url], [])))
        unique_names(targets)
        assert targets[1].name == f"{targets[0].name}#2"


def test_texts_of_other_engines_may_differ() -> None:
    with FakeServer() as server:
        one, other = open_servers(ServerRequests(parse_places([server.url, server.url], [])))
        assert not other.configuration(one).lossless
        assert not other.configuration(object()).repeats


def test_what_a_server_says_of_itself_gets_into_the_report() -> None:
    with FakeServer(Script(lie=1)) as server:
        (target,) = open_servers(ServerRequests(parse_places([server.url], [])))
        configuration = target.configuration(target)
        report = BenchReport({}, "p", PromptSet("p", (TEXT,)).sha256, RunSettings(), target.name,
                        [configuration])  # fmt: skip
        list(target.run([TEXT], RunSettings()))
        finish_servers(report, [target])
        assert report.configurations[0].details["counted_here"]["prompt"] == PROMPT_N
        assert "drafted: 15 here, 16 there" in report.warnings[0]


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["spec", "--api-key", "k", "-n", "3"], ["spec", "--api-key", "***", "-n", "3"]),
        (["--api-key=k"], ["--api-key=***"]),
        (["--api-key", "--api-key", "x"], ["--api-key", "***", "x"]),
    ],
)
def test_reports_hold_no_keys(argv: list[str], shown: list[str]) -> None:
    assert without_keys(argv) == shown


def test_break_even_is_against_plain_steps_of_the_same_engine() -> None:
    details: dict[str, dict[str, object]] = {
        "mtp": {"spec_types": ["mtp"]},
        "peer": {"spec_types": [], "server": "llama.cpp"},
        "peer mtp": {"spec_types": ["draft-mtp"], "server": "llama.cpp"},
        "url": {"server": "vLLM"},
    }
    configurations = [Configuration(name, True, True, of) for name, of in details.items()]
    made = BenchReport({}, "p", "f", RunSettings(), "mtp", configurations)
    assert plains_of(made) == {"peer": "peer", "peer mtp": "peer"}
    made.configurations.append(Configuration("none", True, True, {"spec_types": []}))
    assert plains_of(made)["mtp"] == "none"


def learning_warnings(mean_lens: list[int]) -> list[str]:
    with FakeServer() as server:
        (target,) = open_servers(ServerRequests(parse_places([server.url], [])))
    made = BenchReport({}, "p", "f", RunSettings(), target.name, [])
    made.samples = [
        Sample(target.name, "a", "c", repetition=i, predicted_n=1 + 12 * n, rounds=12)
        for i, n in enumerate(mean_lens)
    ]
    finish_servers(made, [target])
    return made.warnings


def test_answers_that_are_drafted_again_are_told() -> None:
    """A benchmark repeats its prompts, and use does not."""
    (warning,) = learning_warnings([2, 3, 4])
    assert "2.00 tokens per round in the first repetition and 4.00 in the last" in warning
    assert learning_warnings([2, 4, 2]) == []
    assert learning_warnings([2]) == []
