"""Reads what a request says about speculation: `speculative`, and OpenAI's `prediction`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from ..speculation.options import AUTO, NONE, named_by_file, parse_types
from ..speculation.request_spec import RequestSpec
from ..tokenizer import Tokenizer
from .body_parts import DraftOptions, Prediction, Speculative, Texts, as_list
from .lm_studio_fields import read_speculative
from .messages import text_of_content
from .request_bodies import SharedBody
from .request_decoding import refuse

if TYPE_CHECKING:
    from ..runtime import Runtime

MAX_PREDICTION: Final = 1 << 16  # tokens
_OBJECT: Final = "speculative"


def read_specs(
    body: SharedBody, tokenizer: Tokenizer, runtime: Runtime
) -> tuple[RequestSpec, RequestSpec | None]:
    """Returns the options of the whole response, and those of its thinking where they differ."""
    given, loaded = read_speculative(body, runtime), runtime.spec_types
    if not isinstance(given, Speculative):
        given = Speculative(off=given is False)
    for name, part in (("answer", given.answer), ("thinking", given.thinking)):
        if part is not None and part.accept is not None:
            refuse(
                f"{_OBJECT}.{name}.accept",
                "holds for the whole text: give it beside thinking and answer",
            )
    prediction = _read_prediction(body.prediction, tokenizer)
    try:
        answer = _request_spec(given, given.answer, loaded, prediction)
        thinking = _request_spec(given, given.thinking, loaded, prediction)
    except ConfigError as error:
        refuse(_OBJECT, f"cannot be: {error}")
    return answer, thinking if thinking != answer else None


def _request_spec(
    whole: DraftOptions,
    part: DraftOptions | None,
    loaded: tuple[str, ...],
    prediction: tuple[int, ...],
) -> RequestSpec:
    """Returns the options of a part of the response; what it leaves open is as for the whole."""
    part = part or DraftOptions()

    def option(name: str) -> Any:
        value = getattr(part, name)
        return getattr(whole, name) if value is None else value

    return RequestSpec(
        types=(NONE,) if option("off") else _read_types(option("types"), option("type"), loaded),
        n_max=option("n_max"),
        n_min=option("n_min") or 0,
        p_min=option("p_min") or 0.0,
        accept=whole.accept or "",
        prediction=prediction,
        fixed=bool(option("fixed")),
    )


def _read_types(types: Texts, same: Texts, loaded: tuple[str, ...]) -> tuple[str, ...]:
    name, given = ("type", same) if types is None else ("types", types)
    names = [part for text in as_list(given) for part in text.split(",")]
    if not names:
        return ()
    found = named_by_file(parse_types(names), loaded)
    missing = [each for each in found if each not in (*loaded, AUTO, NONE)]
    if missing:
        there = ", ".join(loaded) or "no speculation"
        refuse(f"{_OBJECT}.{name}", f"needs {', '.join(missing)}, but this server has {there}")
    return found


def _read_prediction(given: Prediction | None, tokenizer: Tokenizer) -> tuple[int, ...]:
    text = text_of_content(given.content) if given is not None else ""
    if not text:
        return ()
    tokens = tokenizer.encode(text, add_special=False, parse_special=False, continues=True)
    return tuple(tokens[:MAX_PREDICTION])
