"""/metrics, read by Prometheus' own parser."""

from __future__ import annotations

from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from support.serving import Server

from nextn.core.server.metric_families import labels
from nextn.core.server.metrics import exposition
from nextn.core.worker.totals import Histogram
from nextn.core.worker.worker import Worker


def values(text: str) -> dict[str, float]:
    """By name and labels, without those of the model."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            tags = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            found[sample.name + (str(sorted(tags.items())) if tags else "")] = sample.value
    return found


def test_what_is_counted(eager: Server) -> None:
    server = eager
    before = values(server.get("/metrics"))
    done: dict[str, Any] = server.post(
        "/completion", prompt="x = 1\n" * 20, n_predict=40, temperature=0, cache_prompt=False
    )
    after = values(server.get("/metrics"))

    def gained(name: str) -> float:
        return after.get(name, 0) - before.get(name, 0)

    timings = done["timings"]
    assert gained("llamacpp:tokens_predicted_total") == 40
    assert gained("llamacpp:prompt_tokens_total") == timings["prompt_n"]
    for prefix in ("llamacpp:", "vllm:"):
        assert gained(f"{prefix}spec_decode_num_draft_tokens_total") == timings["draft_n"]
        accepted = gained(f"{prefix}spec_decode_num_accepted_tokens_total")
        assert accepted == timings["draft_n_accepted"] > 0
        per_place = [
            gained(f"{prefix}spec_decode_num_accepted_tokens_per_pos_total[('position', '{i}')]")
            for i in range(64)
        ]
        assert sum(per_place) == accepted
        assert per_place == sorted(per_place, reverse=True)
    by_source = [
        gained(f"nextn:accepted_tokens_total[('source', '{source}')]")
        for source in ("mtp", "ngram-mod")
    ]
    assert sum(by_source) == timings["draft_n_accepted"]
    assert gained("vllm:e2e_request_latency_seconds_count") == 1
    assert gained("vllm:time_to_first_token_seconds_count") == 1
    assert gained("vllm:inter_token_latency_seconds_count") in range(1, 40)
    # llama.cpp has no _total here, which the parser would add.
    assert "\nllamacpp:n_tokens_max " in server.get("/metrics")
    assert gained("llamacpp:n_decode_total") > 0
    assert after["llamacpp:requests_processing"] == 0


def test_names_cannot_break_the_format() -> None:
    evil = 'a"} 1\nfake_metric{x="\\'
    assert labels({"m": evil}).count("\n") == 0
    found = values(exposition(Worker(lambda: None), evil))  # type: ignore[arg-type,return-value]
    assert "fake_metric" not in str(found)


def test_histograms_are_cumulative() -> None:
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.add(seconds)
    assert histogram.counts == [2, 1, 1]
    assert (histogram.n, histogram.total) == (4, 7.65)
