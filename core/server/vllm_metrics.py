"""The metrics that vLLM's dashboards read, as far as they have a meaning here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ..generation import CANCELLED, CONTEXT, EOS, ERROR, LIMIT, STOP
from ..worker.worker import SLEEPING, Worker
from .metric_families import family, histogram_family

# vLLM's word for each stop reason.
_FINISHED: Final = {
    EOS: "stop", STOP: "stop", LIMIT: "length", CONTEXT: "length", CANCELLED: "abort",
    ERROR: "error",
}  # fmt: skip
_ONE_ENGINE: Final = "0"


def vllm_families(worker: Worker, model: str) -> Iterator[list[str]]:
    more = {"model_name": model, "engine": _ONE_ENGINE}
    yield from speculation_families(worker, "vllm:", more)
    yield from _counters(worker, more)
    yield from _gauges(worker, more)
    yield from _histograms(worker, more)


def speculation_families(
    worker: Worker, prefix: str, more: Mapping[str, str]
) -> Iterator[list[str]]:
    totals = worker.totals
    for key, text, value in (
        ("drafts", "Steps that had a draft.", totals.drafts),
        ("draft_tokens", "Tokens that were drafted.", totals.draft_n),
        ("accepted_tokens", "Drafted tokens that were kept.", totals.draft_n_accepted),
    ):
        name = f"{prefix}spec_decode_num_{key}_total"
        yield family(name, "counter", text, value, more=more)
    name = f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"
    text = "Drafted tokens that were kept, by place in the draft."
    places = {str(i): n for i, n in enumerate(totals.accept_per_pos)}
    yield family(name, "counter", text, places, "position", more)


def kv_usage(worker: Worker) -> float:
    """The share of the pages of keys and values that running texts hold."""
    if worker.loaded is None:
        return 0.0
    pool = worker.loaded.engine.store.pool
    return pool.n_held / max(pool.n_pages, 1)


def _counters(worker: Worker, more: Mapping[str, str]) -> Iterator[list[str]]:
    totals = worker.totals
    n_prompt = totals.prompt_n + totals.cached_n
    for key, text, value in (
        ("prompt_tokens", "Prompt tokens, cached ones included.", n_prompt),
        ("prompt_tokens_cached", "Prompt tokens found in the cache.", totals.cached_n),
        ("prefix_cache_queries", "Prompt tokens that were looked up in the cache.", n_prompt),
        ("prefix_cache_hits", "Prompt tokens found in the cache.", totals.cached_n),
        ("generation_tokens", "Tokens that were written.", totals.predicted_n),
        ("num_preemptions", "Running texts that had to wait again: there are none.", 0),
    ):
        yield family(f"vllm:{key}_total", "counter", text, value, more=more)
    finished = dict.fromkeys(_FINISHED.values(), 0)
    for reason, n in dict(totals.ended).items():
        finished[_FINISHED.get(reason, "error")] += n
    text = "Texts that ended, by reason."
    yield family("vllm:request_success_total", "counter", text, finished, "finished_reason", more)


def _gauges(worker: Worker, more: Mapping[str, str]) -> Iterator[list[str]]:
    usage, n_waiting = kv_usage(worker), worker.n_open - worker.n_running
    for key, text, value in (
        ("num_requests_running", "Texts that are being written.", worker.n_running),
        ("num_requests_waiting", "Texts that wait.", n_waiting),
        ("kv_cache_usage_perc", "Share of the pages that running texts hold.", usage),
        ("gpu_cache_usage_perc", "The same, under its earlier name.", usage),
    ):
        yield family(f"vllm:{key}", "gauge", text, value, more=more)
    waiting = {"capacity": n_waiting, "deferred": 0}
    name = "vllm:num_requests_waiting_by_reason"
    yield family(name, "gauge", "Texts that wait, by reason.", waiting, "reason", more)
    is_asleep = worker.state == SLEEPING
    states = {"awake": int(not is_asleep), "weights_offloaded": 0, "discard_all": int(is_asleep)}
    text = "Whether the model is in memory."
    yield family("vllm:engine_sleep_state", "gauge", text, states, "sleep_state", more)


def _histograms(worker: Worker, more: Mapping[str, str]) -> Iterator[list[str]]:
    totals = worker.totals
    between = totals.between_tokens
    for key, text, histogram in (
        ("time_to_first_token_seconds", "From the request to its first token.", totals.first_token),
        ("inter_token_latency_seconds", "Between two tokens of a text.", between),
        ("time_per_output_token_seconds", "The same, under its earlier name.", between),
        ("request_time_per_output_token_seconds", "Mean of a text.", totals.mean_between),
        ("e2e_request_latency_seconds", "Of a whole text.", totals.whole),
        ("request_queue_time_seconds", "Before a text had its turn.", totals.queued),
        ("request_prefill_time_seconds", "Of reading a prompt.", totals.reading),
        ("request_decode_time_seconds", "Of writing a text.", totals.writing),
        ("request_inference_time_seconds", "Of both.", totals.working),
        ("request_prompt_tokens", "Tokens of a prompt.", totals.prompt_lengths),
        ("request_generation_tokens", "Tokens of a text.", totals.text_lengths),
    ):
        yield histogram_family(f"vllm:{key}", text, histogram, more)
