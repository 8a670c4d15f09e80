"""Dashboards find their metrics in /metrics: our own, and those of vLLM and llama.cpp."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client.parser import text_string_to_metric_families
from support.replicated import replicated
from support.routed import Source, router
from support.serving import HANGS_S, Client, Server, nano_server, running, wait_until

from nextn.core.server.metrics import server_exposition

BOARD = Path(__file__).parents[3] / "docs" / "grafana.json"
# Of vLLM's boards (grafana, query_statistics, performance_statistics, overview, kv_cache,
# service_status, speculative_decoding), by the label that they tell series apart with.
VLLM = {
    "": """prompt_tokens_total prompt_tokens_cached_total generation_tokens_total
    num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc
    prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total
    spec_decode_num_drafts_total spec_decode_num_draft_tokens_total
    spec_decode_num_accepted_tokens_total""",
    "finished_reason": "request_success_total",
    "reason": "num_requests_waiting_by_reason",
    "sleep_state": "engine_sleep_state",
    "position": "spec_decode_num_accepted_tokens_per_pos_total",
    "le": """e2e_request_latency_seconds_bucket time_to_first_token_seconds_bucket
    inter_token_latency_seconds_bucket time_per_output_token_seconds_bucket
    request_time_per_output_token_seconds_bucket request_queue_time_seconds_bucket
    request_prefill_time_seconds_bucket request_decode_time_seconds_bucket
    request_inference_time_seconds_bucket request_prompt_tokens_bucket
    request_generation_tokens_bucket""",
}
LLAMA_CPP = """prompt_tokens_total prompt_seconds_total tokens_predicted_total
tokens_predicted_seconds_total n_decode_total prompt_tokens_seconds predicted_tokens_seconds
requests_processing requests_deferred n_busy_slots_per_decode kv_cache_usage_ratio"""
PROCESS = """cpu_seconds_total resident_memory_bytes virtual_memory_bytes start_time_seconds
open_fds max_fds"""
WORD = re.compile(r"[A-Za-z_:][\w:]*")


def samples(client: Client) -> dict[str, set[str]]:
    """The labels of each metric."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(client.get("/metrics")):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def known(eager: Server) -> dict[str, set[str]]:
    eager.post("/completion", prompt="x = 1\n" * 20, n_predict=40, temperature=0)
    return samples(eager)


def expressions() -> Iterator[Any]:
    for panel in json.loads(BOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel["targets"]:
            yield pytest.param(target["expr"], id=f"{panel['title']} {target['refId']}")


def test_grafana_reads_our_board() -> None:
    """Its own types take every field, and give it back."""
    board = json.loads(BOARD.read_text(encoding="utf-8"))
    read = Dashboard.from_json(board)
    assert_within(board, json.loads(JSONEncoder().encode(read)))
    assert len(read.panels or []) == len(board["panels"])


def assert_within(some: Any, whole: Any, place: str = "") -> None:
    if isinstance(some, dict):
        assert isinstance(whole, dict), place
        for key, value in some.items():
            assert key in whole, f"{place}/{key}"
            assert_within(value, whole[key], f"{place}/{key}")
    elif isinstance(some, list):
        assert len(some) == len(whole), place
        for i, (value, other) in enumerate(zip(some, whole, strict=True)):
            assert_within(value, other, f"{place}[{i}]")
    else:
        assert some == whole, place


@pytest.mark.parametrize("expression", list(expressions()))
def test_our_dashboard(known: dict[str, set[str]], expression: str) -> None:
    bare = re.sub(r"\b(by|ignoring|group_left) *\([^)]*\)|\[[^\]]*\]", "", expression)
    used = {found[1] for found in re.finditer(r"([\w:]+)\{", bare)}
    assert used
    assert used <= known.keys()
    words = set(WORD.findall(re.sub(r"\{[^}]*\}", "", bare)))
    assert words - used <= {"sum", "rate", "max", "avg", "histogram_quantile"}
    by = {name.strip() for found in re.finditer(r"by *\(([^)]*)\)", expression)
          for name in found[1].split(",")}  # fmt: skip
    asked = by | set(re.findall(r"(\w+)=~", expression))
    assert asked - {"instance"} <= set.union(*(known[name] for name in used))


def test_the_dashboards_of_others(known: dict[str, set[str]]) -> None:
    for label, names in VLLM.items():
        for name in names.split():
            assert known[f"vllm:{name}"] >= {"model_name", "engine", *([label] if label else [])}
    assert known.keys() >= {f"llamacpp:{name}" for name in LLAMA_CPP.split()}
    assert known.keys() >= {f"process_{name}" for name in PROCESS.split()}


def values(client: Client, name: str, label: str) -> dict[str, float]:
    families = text_string_to_metric_families(client.get("/metrics"))
    return {
        sample.labels.get(label, ""): sample.value
        for family in families
        for sample in family.samples
        if sample.name == name
    }


def test_requests_by_status_and_how_texts_ended() -> None:
    with running(nano_server()) as server:
        server.post("/completion", prompt="a", n_predict=3, ignore_eos=True)
        server.post("/completion", prompt="a", stop=["\n", " ", "e"], ignore_eos=True)
        server.refused("/completion", {"prompt": 5})
        server.request("GET", "/nowhere")
        statuses = values(server, "http_requests_total", "status")
        assert statuses == {"200": 2, "400": 1, "404": 1}
        ended = values(server, "vllm:request_success_total", "finished_reason")
        assert {k: n for k, n in ended.items() if n} == {"length": 1, "stop": 1}


def test_usage_while_a_text_is_written(server: Server) -> None:
    def usage() -> float:
        return values(server, "vllm:kv_cache_usage_perc", "")[""]

    assert usage() == 0
    body = {"prompt": "a", "n_predict": 4000, "ignore_eos": True, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANGS_S)
    connection.request("POST", "/completion", json.dumps(body))
    assert connection.getresponse().readline()
    assert 0 < usage() <= 1
    connection.close()
    wait_until(lambda: server.worker.n_open == 0)
    assert usage() == 0


def test_replicas_and_several_models() -> None:
    with replicated() as replicas:
        replicas.post("/completion", prompt="a", n_predict=3)
        assert values(replicas, "http_requests_total", "replica") == {"server": 1}
        assert {*values(replicas, "process_open_fds", "replica")} == {"0", "1", "server"}
    with router(Source("a")) as models:
        models.post("/completion", prompt="a", n_predict=3, model="a")
        assert values(models, "http_requests_total", "status") == {"200": 1}
        assert {*values(models, "process_open_fds", "model")} == {""}


def test_without_requests() -> None:
    families = list(text_string_to_metric_families(server_exposition({})))
    assert {each.name for each in families} >= {"http_requests", "process_cpu_seconds"}
