"""The fields of a request about speculation: `speculative`, and OpenAI's `prediction`."""

from __future__ import annotations

from typing import Any, Final

from ..errors import ConfigError
from ..speculation.options import AUTO, MAX_DRAFT, NONE, parse_types
from ..speculation.request_spec import RequestSpec
from ..tokenizer import Tokenizer
from .fields import Fields
from .messages import text_of_content

MAX_PREDICTION: Final = 1 << 16  # tokens
_OBJECT: Final = "speculative"
_PARTS: Final = ("answer", "thinking")


def read_specs(
    fields: Fields, tokenizer: Tokenizer, loaded: tuple[str, ...]
) -> tuple[RequestSpec, RequestSpec | None]:
    """`{"speculative": {"types": "mtp", "n_max": 4, "n_min": 0, "p_min": 0.5, "accept": "match",
    "off": true}}`; names with a dot, `speculative.n_max`, are read as well.

    `thinking` and `answer` in it are objects of the same kind, which hold for these parts of a
    response. The second result is for `thinking`; None: the same as the first.
    """
    given = _object(fields)
    prediction = _read_prediction(fields, tokenizer)
    if not given.values and not prediction:
        return RequestSpec(), None
    parts = [given.inner(name) for name in _PARTS]
    for part in parts:
        if "accept" in part:
            part.refuse("accept", "holds for the whole text: give it beside thinking and answer")
    try:
        answer, thinking = (
            _text_spec(Fields({**given.values, **part.values}, f"{_OBJECT}."), loaded, prediction)
            for part in parts
        )
    except ConfigError as error:
        fields.refuse(_OBJECT, f"cannot be: {error}")
    return answer, thinking if thinking != answer else None


def _text_spec(given: Fields, loaded: tuple[str, ...], prediction: tuple[int, ...]) -> RequestSpec:
    return RequestSpec(
        types=(NONE,) if given.flag("off") else _read_types(given, loaded),
        n_max=given.optional_integer("n_max", 0, MAX_DRAFT),
        n_min=given.integer("n_min", 0, 0, MAX_DRAFT),
        p_min=given.number("p_min", 0.0),
        accept=given.text("accept") or "",
        prediction=prediction,
    )


def _object(fields: Fields) -> Fields:
    if fields.get(_OBJECT) is False:
        return Fields({"off": True}, f"{_OBJECT}.")
    given = dict(fields.inner(_OBJECT).values)
    prefix = f"{_OBJECT}."
    for name, value in fields.values.items():
        if name.startswith(prefix):
            given.setdefault(name.removeprefix(prefix), value)
    return Fields(given, prefix)


def _read_types(given: Fields, loaded: tuple[str, ...]) -> tuple[str, ...]:
    name = given.first("types", "type")
    names = [part for text in given.texts(name) for part in text.split(",")]
    if not names:
        return ()
    types = parse_types(names)
    missing = [each for each in types if each not in (*loaded, AUTO, NONE)]
    if missing:
        there = ", ".join(loaded) or "no speculation"
        given.refuse(name, f"asks for {', '.join(missing)}, but this server has {there}")
    return types


def _read_prediction(fields: Fields, tokenizer: Tokenizer) -> tuple[int, ...]:
    given = fields.inner("prediction")
    if "content" not in given:
        return ()
    given.one_of("type", ("content",), "content")
    text: Any = text_of_content(given, "content")
    tokens = tokenizer.encode(text, add_special=False, parse_special=False, continues=True)
    return tuple(tokens[:MAX_PREDICTION])
