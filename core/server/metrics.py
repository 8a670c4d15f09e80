"""`/metrics`: the totals in Prometheus' text format, under the names of llama.cpp and of vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ..generation import rate
from .totals import Histogram
from .worker import SLEEPING, Worker

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def exposition(worker: Worker, model: str) -> str:
    lines: list[str] = []
    for family in (*_llama_cpp(worker), *_vllm(worker, {"model_name": model}), *_own(worker)):
        lines += family
    return "\n".join(lines) + "\n"


def family(
    name: str, kind: str, text: str, samples: Mapping[str, float] | float, label: str = ""
) -> list[str]:
    """Returns the lines of a metric. `samples`: one value, or values by the value of `label`."""
    head = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    if isinstance(samples, int | float):
        return [*head, f"{name} {_number(samples)}"]
    return head + [
        f"{name}{labels({label: key})} {_number(value)}" for key, value in samples.items()
    ]


def labels(values: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in values.items())
    return f"{{{inside}}}" if inside else ""


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
    yield from _speculation(worker, "llamacpp:", {})
    read = rate(totals.prompt_n, totals.prompt_ms)
    written = rate(totals.predicted_n, totals.predicted_ms)
    gauges = {
        "prompt_tokens_seconds": ("Prompt tokens per second.", read),
        "predicted_tokens_seconds": ("Tokens written per second, of one text.", written),
        "requests_processing": ("Texts that are being written.", worker.n_running),
        "requests_deferred": ("Texts that wait.", worker.n_open - worker.n_running),
        "n_busy_slots_per_decode": ("Texts in a step.", totals.busy / max(totals.steps, 1)),
    }  # fmt: skip
    for key, (text, value) in gauges.items():
        yield family(name(key), "gauge", text, value)


def _speculation(worker: Worker, prefix: str, more: dict[str, str]) -> Iterator[list[str]]:
    totals, tag = worker.totals, labels(more)
    for key, text, value in (
        ("drafts", "Steps that had a draft.", totals.drafts),
        ("draft_tokens", "Tokens that were drafted.", totals.draft_n),
        ("accepted_tokens", "Drafted tokens that were kept.", totals.draft_n_accepted),
    ):
        name = f"{prefix}spec_decode_num_{key}_total"
        yield [f"# HELP {name} {text}", f"# TYPE {name} counter", f"{name}{tag} {value}"]
    name = f"{prefix}spec_decode_num_accepted_tokens_per_pos_total"
    yield [
        f"# HELP {name} Drafted tokens that were kept, by place in the draft.",
        f"# TYPE {name} counter",
        *(
            f"{name}{labels({**more, 'position': str(i)})} {n}"
            for i, n in enumerate(totals.accept_per_pos)
        ),
    ]


def _vllm(worker: Worker, more: dict[str, str]) -> Iterator[list[str]]:
    totals, tag = worker.totals, labels(more)
    yield from _speculation(worker, "vllm:", more)
    for key, text, value in (
        ("num_requests_running", "Texts that are being written.", worker.n_running),
        ("num_requests_waiting", "Texts that wait.", worker.n_open - worker.n_running),
    ):
        name = f"vllm:{key}"
        yield [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name}{tag} {value}"]
    for key, text, histogram in (
        ("time_to_first_token_seconds", "From the request to its first token.", totals.first_token),
        ("inter_token_latency_seconds", "Between two tokens of a text.", totals.between_tokens),
        ("e2e_request_latency_seconds", "Of a whole text.", totals.whole),
        ("request_queue_time_seconds", "Before a text had its turn.", totals.queued),
    ):
        yield _histogram(f"vllm:{key}", text, histogram, more)


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


def _histogram(name: str, text: str, histogram: Histogram, more: dict[str, str]) -> list[str]:
    lines, n = [f"# HELP {name} {text}", f"# TYPE {name} histogram"], 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        n += count
        lines.append(f"{name}_bucket{labels({**more, 'le': str(bound)})} {n}")
    lines.append(f"{name}_sum{labels(more)} {_number(histogram.total)}")
    lines.append(f"{name}_count{labels(more)} {n}")
    return lines


def _number(value: float) -> str:
    return str(int(value)) if isinstance(value, int) else f"{value:.9g}"
