"""Request bodies and events of three APIs: llama.cpp's /completion and OpenAI's two."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from ..errors import ConfigError
from ..sampling.params import SamplingParams
from .record import RunSettings
from .wire import ServerError

NATIVE: Final = "native"
COMPLETIONS: Final = "completions"
CHAT: Final = "chat"
PATHS: Final = {
    NATIVE: "/completion",
    COMPLETIONS: "/v1/completions",
    CHAT: "/v1/chat/completions",
}
DONE: Final = "[DONE]"
EOS, LIMIT, STOP = "eos", "limit", "stop"
_ENDINGS: Final = {"eos": EOS, "limit": LIMIT, "word": STOP, "stop": EOS, "length": LIMIT}

Message = dict[str, str]


class Task(Struct, frozen=True):
    """One text to be written. `prompt` for completions, `messages` for chat."""

    n: int  # tokens
    settings: RunSettings
    prompt: str | Sequence[int] = ""
    messages: Sequence[Message] = ()
    salt: str = ""  # of a conversation: caches of other salts are not used


class Manner(Struct, frozen=True):
    """How requests to one server are made."""

    api: str
    model: str = ""
    extends: bool = True  # it accepts fields that OpenAI does not have
    is_ours: bool = False  # it accepts the fields of our server
    limit_field: str = "max_tokens"
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields of the user for every body


class ServerEvent(NamedTuple):
    """One event."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    timings: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] | None = None
    ending: str = ""
    # Per token: its drafter, and how many tokens for its place and those behind it were rejected.
    sources: tuple[tuple[str, int], ...] = ()


def request_body(manner: Manner, task: Task) -> dict[str, Any]:
    """Greedy unless there is a temperature, without penalties, nothing from caches."""
    body = _native_body(task) if manner.api == NATIVE else _openai_body(manner, task)
    if manner.is_ours:
        body["return_sources"] = True
    return _merged(body, manner.extra)


def _native_body(task: Task) -> dict[str, Any]:
    prompt = task.prompt if isinstance(task.prompt, str) else list(task.prompt)
    return {
        "prompt": prompt,
        "n_predict": task.n,
        "stream": True,
        **_sampling(task.settings),
        **_penalties(),
        "ignore_eos": task.settings.ignore_eos,
        **_no_caches(task),
        "return_tokens": True,
        "timings_per_token": True,
    }


def _openai_body(manner: Manner, task: Task) -> dict[str, Any]:
    body: dict[str, Any] = {"model": manner.model} if manner.model else {}
    if manner.api == CHAT:
        body["messages"] = [dict(message) for message in task.messages]
    else:
        body["prompt"] = task.prompt if isinstance(task.prompt, str) else list(task.prompt)
    body |= {manner.limit_field: task.n, "stream": True, "stream_options": {"include_usage": True}}
    if not manner.extends:
        settings = task.settings
        return body | {"temperature": settings.temperature, "seed": settings.seed}
    return body | {
        **_sampling(task.settings),
        **_penalties(),
        "repetition_penalty": 1.0,
        "ignore_eos": task.settings.ignore_eos,
        **_no_caches(task),
        "timings_per_token": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def _sampling(settings: RunSettings) -> dict[str, Any]:
    """The same chain everywhere: servers have defaults of their own."""
    ours = SamplingParams(temperature=settings.temperature, seed=settings.seed)
    body: dict[str, Any] = {"temperature": settings.temperature, "seed": settings.seed}
    if settings.temperature:
        body |= {"top_k": ours.top_k, "top_p": ours.top_p, "min_p": ours.min_p}
    return body


def _no_caches(task: Task) -> dict[str, Any]:
    """llama.cpp's way, and vLLM's and ours, of not finding what another request left."""
    return {"cache_prompt": False, "cache_salt": task.salt}


def _penalties() -> dict[str, Any]:
    return {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def _merged(body: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`extra` wins; null takes a field out."""
    both = {**body, **extra}
    return {name: value for name, value in both.items() if value is not None}


OWN_FIELDS: Final = ("stream", "prompt", "messages", "n", "n_cmpl")


def parse_extra(text: str, place: str) -> dict[str, Any]:
    """JSON that goes into the body of requests."""
    try:
        extra = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{place}: no JSON ({error})") from None
    if not isinstance(extra, dict):
        raise ConfigError(f"{place}: must be a JSON object, got {text[:40]!r}")
    for name in OWN_FIELDS:
        if name in extra:
            raise ConfigError(f"{place}: {name} is set by the benchmark; leave it out")
    return extra


def read_event(text: str) -> ServerEvent | None:
    """None for an event without a token or count; ServerError for a reported failure."""
    if text.strip() == DONE:
        return None
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        raise ServerError(f"sent an event that is no JSON: {text[:80]!r}") from None
    if not isinstance(event, dict):
        raise ServerError(f"sent an event that is no object: {text[:80]!r}")
    if event.get("error"):
        error = event["error"]
        message = error.get("message") if isinstance(error, dict) else error
        raise ServerError(f"failed while writing: {str(message)[:200]}")
    timings, usage = _object(event, "timings"), _object(event, "usage")
    if "choices" not in event:
        return _native_event(event, timings)
    choices = event["choices"]
    choice = choices[0] if isinstance(choices, list) and choices else {}
    return _openai_event(choice if isinstance(choice, dict) else {}, timings, usage)


def _native_event(
    event: Mapping[str, Any], timings: Mapping[str, Any] | None
) -> ServerEvent | None:
    if "prompt_progress" in event or "content" not in event:
        return None
    ending = _ending(event.get("stop_type", "limit")) if event.get("stop") is True else ""
    ids = _tokens(event.get("tokens"))
    return ServerEvent(
        _text(event["content"]), ids, timings, None, ending, _sources(event, len(ids))
    )


def _openai_event(
    choice: Mapping[str, Any], timings: Mapping[str, Any] | None, usage: Mapping[str, Any] | None
) -> ServerEvent:
    delta = choice.get("delta")
    held = delta if isinstance(delta, dict) else {}
    text = _text(choice.get("text"))
    for name in ("reasoning_content", "reasoning", "content"):
        text += _text(held.get(name))
    ending = _ending(choice.get("finish_reason"))
    ids = _tokens(choice.get("token_ids", choice.get("tokens")))  # vLLM's name, and ours
    return ServerEvent(text, ids, timings, usage, ending, _sources(choice, len(ids)))


def _sources(of: Mapping[str, Any], n: int) -> tuple[tuple[str, int], ...]:
    """`sources` and `rejected` of our server, a pair for every token or none at all."""
    sources, rejected = _list(of, "sources"), _list(of, "rejected")
    pairs = list(zip(sources, rejected, strict=False))
    if not len(sources) == len(rejected) == n:
        return ()
    if any(type(source) is not str or type(others) is not list for source, others in pairs):
        return ()
    return tuple((source, len(others)) for source, others in pairs)


def _list(of: Mapping[str, Any], name: str) -> list[Any]:
    value = of.get(name)
    return value if isinstance(value, list) else []


def _ending(name: Any) -> str:
    return _ENDINGS.get(name, str(name)) if name else ""


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = event.get(name)
    return value if isinstance(value, dict) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _tokens(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(each) is not int for each in value):
        return ()
    return tuple(value)
