"""`/metrics`: the totals in Prometheus' text format, under the names of llama.cpp and of vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ..generation import rate
from ..worker.worker import SLEEPING, Worker
from .metric_families import family, text_of
from .process_metrics import process_families
from .vllm_metrics import kv_usage, speculation_families, vllm_families

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposition(worker: Worker, model: str) -> str:
    return text_of((*_llama_cpp(worker), *vllm_families(worker, model), *_own(worker)))


def server_exposition(statuses: Mapping[int, int]) -> str:
    """Of the process and of all requests to it. `statuses`: how many ended with each."""
    text = "Requests that ended, by the status that was sent; 499: the client left before."
    counts = {str(status): n for status, n in sorted(statuses.items())}
    return text_of(
        [family("http_requests_total", "counter", text, counts, "status"), *process_families()]
    )


def _llama_cpp(worker: Worker) -> Iterator[list[str]]:
    totals, name = worker.totals, "llamacpp:{}".format
    counters = {
        "prompt_tokens_total": ("Prompt tokens that were read.", totals.prompt_n),
        "prompt_tokens_cached_total": ("Prompt tokens found in the cache.", totals.cached_n),
        "prompt_seconds_total": ("Time spent on prompts.", totals.prompt_ms / 1000),
        "tokens_predicted_total": ("Tokens that were written.", totals.predicted_n),
        "tokens_predicted_seconds_total": ("Time spent on them.", totals.predicted_ms / 1000),
        "n_decode_total": ("Steps of the model.", totals.steps),
        "n_tokens_max": ("Longest text, prompt included.", totals.longest),
    }
    for key, (text, value) in counters.items():
        yield family(name(key), "counter", text, value)
    yield from speculation_families(worker, "llamacpp:", {})
    read = rate(totals.prompt_n, totals.prompt_ms)
    written = rate(totals.predicted_n, totals.predicted_ms)
    gauges = {
        "prompt_tokens_seconds": ("Prompt tokens per second.", read),
        "predicted_tokens_seconds": ("Tokens written per second, of one text.", written),
        "requests_processing": ("Texts that are being written.", worker.n_running),
        "requests_deferred": ("Texts that wait.", worker.n_open - worker.n_running),
        "n_busy_slots_per_decode": ("Texts in a step.", totals.busy / max(totals.steps, 1)),
        "kv_cache_usage_ratio": ("Share of the cells that running texts use.", kv_usage(worker)),
    }  # fmt: skip
    for key, (text, value) in gauges.items():
        yield family(name(key), "gauge", text, value)


def _own(worker: Worker) -> Iterator[list[str]]:
    totals = worker.totals
    sources = totals.by_source.items()
    name = "nextn:{}".format
    yield family(
        name("draft_tokens_total"), "counter", "Draft tokens by drafter.",
        {source: stats.drafted for source, stats in sources}, "source",
    )  # fmt: skip
    yield family(
        name("accepted_tokens_total"), "counter", "Accepted draft tokens by drafter.",
        {source: stats.accepted for source, stats in sources}, "source",
    )  # fmt: skip
    yield family(
        name("draft_seconds_total"), "counter", "Time that drafting took.",
        {source: stats.ms / 1000 for source, stats in sources}, "source",
    )  # fmt: skip
    yield family(
        name("texts_total"), "counter", "Texts that ended, by reason.", dict(totals.ended), "reason"
    )
    if (loaded := worker.loaded) is not None:
        use = loaded.engine.store.cache_use
        for key, text, value in (
            ("cache_bytes", "What texts that ended left in memory.", use.n_bytes),
            ("cache_limit_bytes", "That it may become.", use.limit),
            ("cache_pages", "Pages of keys and values in it.", use.n_pages),
            ("cache_states", "Recurrent states in it.", use.n_states),
        ):
            yield family(name(key), "gauge", text, value)
        text = "Pages and states that were given up for others."
        yield family(name("cache_evicted"), "gauge", text, use.n_evicted)
    yield family(name("is_sleeping"), "gauge", "No model in memory.", worker.state == SLEEPING)
    text = "Requests refused because too many waited."
    yield family(name("requests_refused_total"), "counter", text, totals.refused)
    text = "Steps of the engine that ended with an exception."
    yield family(name("failed_steps_total"), "counter", text, totals.failed_steps)
    text = "Exceptions of drafters: the texts under way went on without drafts."
    yield family(name("drafter_failures_total"), "counter", text, totals.drafter_failures)
