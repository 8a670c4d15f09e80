"""What a reply has to be: a call, if one is demanded; and JSON only behind the thoughts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ..generation import GenerateParams
from ..sampling.forms import write_forms
from ..sampling.thought_limit import ThoughtLimit, limit_thoughts
from ..tokenizer.harmony import ANALYSIS, ASSISTANT, CALL, COMMENTARY, END, FINAL
from .chat_prompt import ChatPrompt
from .request_bodies import BUDGETS, ChatBody
from .request_decoding import refuse
from .settings import ServerSettings

Forms = list[tuple[str, Any, str]]  # text before, schema, text behind


def bind(
    params: GenerateParams, prompt: ChatPrompt, body: ChatBody, settings: ServerSettings
) -> GenerateParams:
    limit = _thought_limit(prompt, body, settings)
    return _with_rules(replace(params, thoughts=limit) if limit else params, prompt)


def _thought_limit(
    prompt: ChatPrompt, body: ChatBody, settings: ServerSettings
) -> ThoughtLimit | None:
    given = [value for name in BUDGETS if (value := getattr(body, name)) is not None]
    n_max = given[0] if given else settings.reasoning_budget
    message = body.reasoning_budget_message
    if message is None:
        message = settings.reasoning_message
    return limit_thoughts(n_max, prompt.marks, prompt.text, message)


def _with_rules(params: GenerateParams, prompt: ChatPrompt) -> GenerateParams:
    if prompt.calls is not None and prompt.tools.is_forced:
        if params.is_restricted:
            refuse("tool_choice", "cannot demand a call of a text that follows a grammar")
        forms = prompt.tools.forms(prompt.calls)
        write = _calls_in_channels if prompt.is_harmony else _behind_thought
        return replace(params, forms=write(forms, prompt))
    if params.json_schema is None:
        return params
    if prompt.is_harmony and prompt.text.endswith(ASSISTANT):
        written = _in_channels([(FINAL, _schema(params), "")], (ANALYSIS,))
    elif prompt.is_thinking and not prompt.is_harmony:
        written = _behind_thought([("", _schema(params), "")], prompt)
    else:
        return params
    return replace(params, json_schema=None, forms=written)


def _schema(params: GenerateParams) -> Any:
    try:
        return json.loads(params.json_schema or "")
    except ValueError:
        refuse("json_schema", "is not JSON")


def _behind_thought(forms: Forms, prompt: ChatPrompt) -> str:
    if prompt.marks is None or not prompt.is_thinking:
        return write_forms(forms)
    forms = [(f"\n\n{before}", schema, after) for before, schema, after in forms]
    return write_forms(forms, thought_end=prompt.marks[1])


def _calls_in_channels(forms: Forms, prompt: ChatPrompt) -> str:
    if prompt.text.endswith(ASSISTANT):
        return _in_channels(forms, (ANALYSIS, COMMENTARY))
    # The client has begun or ended a message: the call is the next one.
    lead = ASSISTANT if prompt.text.endswith((END, CALL)) else END + ASSISTANT
    return write_forms([(lead + before, schema, after) for before, schema, after in forms])


def _in_channels(forms: Forms, others: Sequence[str]) -> str:
    """`others`: channels of the messages that may come first."""
    return write_forms(forms, thought_starts=others, thought_end=END, behind_thought=ASSISTANT)
