"""`CallStyle`: how a model marks its calls, derived from its chat template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from .calls import CallParser, JsonCall, Schemas, XmlCall


@dataclass(frozen=True, slots=True)
class CallStyle:
    opening: str  # of a call
    make: Callable[[int, str, Schemas], CallParser]  # number, opening, schemas
    closing: str = ""
    is_whole: bool = False  # a reply with a call is nothing but the call
    is_listed: bool = False  # several calls in one JSON list
    is_native: bool = True  # the template presents tools by itself


class _Either(CallParser):
    """Parses JSON or XML between the same marks: some models write one, some both."""

    def __init__(self, number: int, opening: str, closing: str, schemas: Schemas) -> None:
        super().__init__(number, opening)
        self._marks, self._schemas = (opening, closing), schemas
        self._chosen: CallParser | None = None

    def _read(self) -> bool:
        if self._chosen is None:
            start = self._text.lstrip()[:1]
            if not start:
                return False
            opening, closing = self._marks
            self._chosen = (
                XmlCall(self.number, opening, closing, self._schemas)
                if start == "<"
                else JsonCall(self.number, opening, closing)
            )
            self._chosen.pieces = self.pieces
        left = self._chosen.feed(self._text)
        self.is_begun = self._chosen.is_begun
        self._text = left or ""
        return left is not None

    def end(self) -> str:
        return super().end() if self._chosen is None else self._chosen.end()


def _tagged(number: int, opening: str, schemas: Schemas) -> CallParser:
    return _Either(number, opening, "</tool_call>", schemas)


def _json(number: int, opening: str, _schemas: Schemas, *, named: bool = False) -> CallParser:
    return JsonCall(number, opening, "", named=named)


HERMES: Final = CallStyle("<tool_call>", _tagged, closing="</tool_call>")
LISTED: Final = CallStyle("[TOOL_CALLS]", _json, is_listed=True)
NAMED: Final = CallStyle("[TOOL_CALLS]", partial(_json, named=True))
BARE: Final = CallStyle("{", _json, is_whole=True)
TAUGHT: Final = CallStyle("<tool_call>", _tagged, closing="</tool_call>", is_native=False)


def find_call_style(template: str) -> CallStyle:
    if "<tool_call>" in template:
        return HERMES
    if "[TOOL_CALLS]" in template:
        return NAMED if "[ARGS]" in template else LISTED
    if "tools" in template and ("ipython" in template or "python_tag" in template):
        return BARE
    return TAUGHT
