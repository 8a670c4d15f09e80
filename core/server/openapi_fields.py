"""JSON Schemas of request fields. Other fields are ignored; null counts as absent."""

from __future__ import annotations

from typing import Any, Final

from ..sampling.params import MAX_SEED
from .asked import MAX_LOGPROBS, MAX_TEXTS
from .sampling_fields import MAX_INT, MAX_STOPS
from .settings import REASONING_FORMATS

Schema = dict[str, Any]


def of(kind: str, text: str = "", **more: Any) -> Schema:
    """Returns the schema of a field that has this type or is null."""
    told: Schema = {"type": [kind, "null"], **more}
    return told | {"description": text} if text else told


def integer(low: int, high: int, text: str = "") -> Schema:
    return of("integer", text, minimum=low, maximum=high)


def number(low: float, high: float | None = None, text: str = "") -> Schema:
    return of("number", text, minimum=low, **({} if high is None else {"maximum": high}))


def texts(text: str = "", most: int | None = None) -> Schema:
    items: Schema = {"type": ["string", "array", "null"], "items": {"type": "string"}}
    limit = {} if most is None else {"maxItems": most}
    return items | limit | ({"description": text} if text else {})


def one_of(*choices: str) -> Schema:
    return {"enum": [*choices, None]}


def an_object(properties: Schema, *required: str, **more: Any) -> Schema:
    told: Schema = {"type": "object", "properties": properties, **more}
    return told | ({"required": list(required)} if required else {})


SCHEMA_FIELD: Final[Schema] = {"type": ["object", "boolean", "null"], "description": "JSON Schema"}
SPECULATIVE: Final[Schema] = {
    "description": "Speculation for this request; false switches it off. Never changes the text, "
    "but for `accept` rules that say so.",
    "anyOf": [
        {"type": "boolean"},
        {"type": "null"},
        an_object(
            {
                "types": texts("drafters, of those that the server was started with"),
                "n_max": integer(0, 64, "longest draft"),
                "n_min": integer(0, 64),
                "p_min": number(0, 1),
                "accept": of("string"),
                "off": of("boolean"),
            }
        ),
    ],
}
_N_TOKENS: Final = integer(-1, MAX_INT, "tokens to write at most; -1: no limit")
SAMPLING: Final[Schema] = {
    "temperature": number(0),
    "top_k": integer(-1, MAX_INT),
    "top_p": number(0, 1),
    "min_p": number(0, 1),
    "typical_p": number(0, 1),
    "top_n_sigma": of("number"),
    "dynatemp_range": of("number"),
    "dynatemp_exponent": of("number"),
    "xtc_probability": number(0, 1),
    "xtc_threshold": number(0, 1),
    "repeat_last_n": integer(-1, MAX_INT),
    "repeat_penalty": number(0.01),
    "presence_penalty": of("number"),
    "frequency_penalty": of("number"),
    "dry_multiplier": of("number"),
    "dry_base": of("number"),
    "dry_allowed_length": integer(0, MAX_INT),
    "dry_penalty_last_n": integer(-1, MAX_INT),
    "dry_sequence_breakers": texts(),
    "adaptive_target": of("number"),
    "adaptive_decay": of("number"),
    "samplers": texts("samplers in their order, or their letters"),
    "seed": integer(-1, MAX_SEED, "-1 draws one"),
    "logit_bias": {
        "description": 'added to logits: `{"15043": -1}` or `[[15043, -1], ["text", false]]`',
        "type": ["object", "array", "null"],
        "additionalProperties": {"type": ["number", "boolean"]},
        "items": {"type": "array", "minItems": 2, "maxItems": 2},
    },
    "stop": texts("the text ends before any of these", MAX_STOPS),
    "ignore_eos": of("boolean"),
    "grammar": of("string", "GBNF, or Lark"),
    "json_schema": SCHEMA_FIELD,
    "response_format": {
        "type": ["object", "null"],
        "properties": {
            "type": one_of("text", "json_object", "json_schema"),
            "json_schema": of("object", properties={"schema": SCHEMA_FIELD}),
            "schema": SCHEMA_FIELD,
        },
    },
}
COMMON: Final[Schema] = SAMPLING | {
    "model": of("string", "any name will do"),
    "stream": of("boolean"),
    "stream_options": of("object", properties={"include_usage": of("boolean")}),
    "n": integer(1, MAX_TEXTS, "texts for each prompt; at most as many as there are slots"),
    "max_tokens": _N_TOKENS,
    "max_completion_tokens": _N_TOKENS,
    "n_predict": _N_TOKENS,
    "n_keep": integer(-1, MAX_INT),
    "n_discard": integer(0, MAX_INT),
    "id_slot": integer(-1, 255, "a wish"),
    "cache_prompt": of("boolean"),
    "t_max_predict_ms": integer(-1, MAX_INT),
    "return_progress": of("boolean"),
    "timings_per_token": of("boolean"),
    "speculative": SPECULATIVE,
    "prediction": of(
        "object", "OpenAI's predicted outputs, which are drafted from",
        properties={"type": one_of("content"), "content": texts()},
    ),
}  # fmt: skip
PROMPT: Final[Schema] = {
    "description": "a text, token ids, or lists of either",
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": ["string", "integer", "array"]}, "minItems": 1},
    ],
}
CONTENT: Final[Schema] = {
    "anyOf": [
        {"type": ["string", "null"]},
        {
            "type": "array",
            "items": an_object(
                {"type": {"enum": ["text", "input_text", "output_text"]}, "text": of("string")},
                "type",
            ),
        },
    ],
}
MESSAGES: Final[Schema] = {
    "type": "array",
    "minItems": 1,
    "items": an_object(
        {
            "role": {"type": "string", "minLength": 1},
            "content": CONTENT,
            "tool_calls": of("array", items={"type": "object"}),
            "tool_call_id": of("string"),
        },
        "role",
    ),
}
_FUNCTION: Final = an_object(
    {
        "name": {"type": "string", "minLength": 1, "maxLength": 256},
        "description": of("string"),
        "parameters": of("object"),
    },
    "name",
)
CHAT: Final[Schema] = COMMON | {
    "messages": MESSAGES,
    "logprobs": of("boolean"),
    "top_logprobs": integer(0, 20),
    "tools": of(
        "array", maxItems=128,
        items=an_object({"type": {"const": "function"}, "function": _FUNCTION}, "function"),
    ),
    "tool_choice": {
        "anyOf": [one_of("none", "auto", "required"), an_object({"function": {"type": "object"}})]
    },
    "chat_template_kwargs": of("object", "switches of the model's template"),
    "add_generation_prompt": of("boolean"),
    "continue_final_message": of("boolean", "go on with the assistant's message that is last"),
    "reasoning_format": one_of(*REASONING_FORMATS),
}  # fmt: skip
COMPLETIONS: Final[Schema] = COMMON | {"prompt": PROMPT, "logprobs": integer(0, MAX_LOGPROBS)}
NATIVE: Final[Schema] = COMMON | {
    "prompt": PROMPT,
    "n_probs": integer(0, MAX_LOGPROBS),
    "post_sampling_probs": of("boolean", "those of `n_probs` as all samplers leave them"),
    "return_tokens": of("boolean"),
    "response_fields": texts("fields of the response that are wanted; `timings/draft_n`"),
}
INFILL: Final[Schema] = COMMON | {
    "input_prefix": of("string"),
    "input_suffix": of("string"),
    "prompt": of("string", "what the middle begins with"),
    "input_extra": of(
        "array", maxItems=1024,
        items=an_object({"filename": of("string"), "text": {"type": "string"}}, "text"),
    ),
}  # fmt: skip
_SHARED: Final = ("temperature", "top_p", "seed", "model", "stream", "cache_prompt", "speculative")
RESPONSES: Final[Schema] = {name: COMMON[name] for name in _SHARED} | {
    "input": {
        "anyOf": [
            {"type": "string"},
            {
                "type": "array",
                "minItems": 1,
                "items": an_object(
                    {"role": {"type": "string", "minLength": 1}, "content": CONTENT}, "role"
                ),
            },
        ]
    },
    "instructions": of("string"),
    "max_output_tokens": _N_TOKENS,
    "tools": of("array", items={"type": "object"}),
    "text": of("object"),
}
ANTHROPIC: Final[Schema] = {name: COMMON[name] for name in _SHARED} | {
    "messages": {
        "type": "array",
        "minItems": 1,
        "items": an_object(
            {"role": {"enum": ["user", "assistant", "system"]}, "content": CONTENT}, "role"
        ),
    },
    "system": texts(),
    "stop_sequences": texts(most=MAX_STOPS),
    "max_tokens": _N_TOKENS | {"type": "integer"},
    "tools": of("array", items={"type": "object"}),
}
