"""`CallStyle`: how a model marks its calls, derived from its chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from ...tokenizer.harmony import CHANNEL, CONSTRAIN, MESSAGE, speaks_harmony
from .call_heads import BLANKS, ID, NAME, NUMBER, Head
from .calls import KEYED_FORM, CallParser, CohereCall, JsonCall, NamedCall, Schemas, XmlCall
from .gemma_arguments import GemmaCall
from .python_call import PythonCall


class CallList(Struct, frozen=True):
    """Marks of several calls, around each of which there may be marks again."""

    item: str = ""  # before each call
    closing: str = "]"
    between: re.Pattern[str] = re.compile(r"[\s\[,]*")  # two calls, and before the first


class CallStyle(Struct, frozen=True):
    opening: str  # of a call, or of a list of calls
    # Number, opening, schemas. None: calls are read by the parser of the whole reply.
    make: Callable[[int, str, Schemas], CallParser] | None
    closing: str = ""
    is_whole: bool = False  # a reply with a call is nothing but the call
    listed: CallList | None = None  # several calls behind one opening
    is_native: bool = True  # the template presents tools by itself
    # What stands before and behind the arguments of a call of this name, if it is not JSON's name.
    around: Callable[[str], tuple[str, str]] | None = None


class _Either(CallParser):
    """Parses JSON, or names and parameters between marks: some models write one, some both."""

    def __init__(self, number: int, opening: str, closing: str, make_other: _MakeOther) -> None:
        super().__init__(number, opening)
        self._marks, self._make_other = (opening, closing), make_other
        self._chosen: CallParser | None = None

    def _read(self) -> bool:
        if self._chosen is None:
            start = self._text.lstrip()[:1]
            if not start:
                return False
            opening, closing = self._marks
            self._chosen = self._make_other(self.number, opening, start) or JsonCall(
                self.number, opening, closing
            )
            self._chosen.pieces = self.pieces
        left = self._chosen.feed(self._text)
        self.is_begun = self._chosen.is_begun
        self._text = left or ""
        return left is not None

    def end(self) -> str:
        return super().end() if self._chosen is None else self._chosen.end()

    def cut(self) -> str:
        return "" if self._chosen is None else self._chosen.cut()


_MakeOther = Callable[[int, str, str], CallParser | None]
_CLOSING: Final = "</tool_call>"
_SEED_CLOSING: Final = "</seed:tool_call>"


def _tagged(number: int, opening: str, schemas: Schemas, *, closing: str = _CLOSING) -> CallParser:
    def other(number: int, opening: str, start: str) -> CallParser | None:
        return XmlCall(number, opening, closing, schemas) if start == "<" else None

    return _Either(number, opening, closing, other)


def _keyed(number: int, opening: str, schemas: Schemas) -> CallParser:
    """GLM: the name without a mark, keys and values in some."""

    def other(number: int, opening: str, start: str) -> CallParser | None:
        is_json = start == "{"
        return None if is_json else XmlCall(number, opening, _CLOSING, schemas, KEYED_FORM)

    return _Either(number, opening, _CLOSING, other)


def _json(number: int, opening: str, _schemas: Schemas) -> CallParser:
    return JsonCall(number, opening, "")


def _cohere(number: int, opening: str, _schemas: Schemas) -> CallParser:
    return CohereCall(number, opening, "")


def _named(
    number: int,
    opening: str,
    _schemas: Schemas,
    *,
    heads: tuple[Head, ...],
    closings: tuple[tuple[str, ...], ...],
) -> CallParser:
    return NamedCall(number, opening, heads, closings)


def _gemma(number: int, opening: str, _schemas: Schemas) -> CallParser:
    return GemmaCall(number, opening, "<tool_call|>")


def _python(number: int, opening: str, schemas: Schemas) -> CallParser:
    def other(number: int, opening: str, start: str) -> CallParser | None:
        return None if start == "{" else PythonCall(number, opening, schemas)

    return _Either(number, opening, "", other)


def _deepseek(name: str) -> str:
    """A mark of DeepSeek's, which has its own bars and spaces."""
    return f"<\uff5c{name.replace(' ', chr(0x2581))}\uff5c>"


_SEP: Final = _deepseek("tool sep")
_BEGIN, _END = _deepseek("tool call begin"), _deepseek("tool call end")
_DEEPSEEK_LIST: Final = CallList(_BEGIN, _deepseek("tool calls end"), re.compile(r"\s*"))
# V3.1 and after; R1 and V3, whose arguments are a block of code.
_DEEPSEEK_HEADS: Final[tuple[Head, ...]] = (
    (BLANKS, NAME, _SEP, BLANKS),
    (BLANKS, "function", _SEP, BLANKS, NAME, BLANKS, "```json", BLANKS),
)
_KIMI_LIST: Final = CallList(
    "<|tool_call_begin|>", "<|tool_calls_section_end|>", re.compile(r"\s*")
)
_KIMI_ARGUMENTS, _KIMI_END = "<|tool_call_argument_begin|>", "<|tool_call_end|>"
_KIMI_ID: Final[Head] = (NAME, NUMBER, BLANKS, _KIMI_ARGUMENTS, BLANKS)
_KIMI_HEADS: Final[tuple[Head, ...]] = ((BLANKS, "functions.", *_KIMI_ID), (BLANKS, *_KIMI_ID))


def _around_deepseek(name: str, *, is_code: bool) -> tuple[str, str]:
    opening, closing = DEEPSEEK.opening + _BEGIN, _END + _DEEPSEEK_LIST.closing
    if is_code:
        return f"{opening}function{_SEP}{name}\n```json\n", f"\n```{closing}"
    return f"{opening}{name}{_SEP}", closing


def _around_granite(name: str) -> tuple[str, str]:
    return (
        f'{GRANITE.opening}[{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": ',
        "}]",
    )


def _around_cohere(name: str) -> tuple[str, str]:
    start = f'[{{"tool_call_id": "0", "tool_name": {json.dumps(name, ensure_ascii=False)}'
    return f'{COHERE.opening}{start}, "parameters": ', f"}}]{_COHERE_LIST.closing}"


def _around_kimi(name: str) -> tuple[str, str]:
    opening = f"{KIMI.opening}{_KIMI_LIST.item}functions.{name}:0{_KIMI_ARGUMENTS}"
    return opening, f"{_KIMI_END}{_KIMI_LIST.closing}"


def _around_lfm(name: str) -> tuple[str, str]:
    start = f'[{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
    return LFM.opening + start, f"}}]{_LFM_LIST.closing}"


_LFM_LIST: Final = CallList("", "<|tool_call_end|>", re.compile(r"[\s\[,\]]*"))
# The bracket of the list stands before the mark, or is missing.
_COHERE_LIST: Final = CallList("", "<|END_ACTION|>", re.compile(r"[\s\[,\]]*"))
_MISTRAL_HEADS: Final[tuple[Head, ...]] = (
    (BLANKS, NAME, BLANKS, "[ARGS]", BLANKS),
    (BLANKS, NAME, BLANKS, "[CALL_ID]", ID, BLANKS, "[ARGS]", BLANKS),
)
HERMES: Final = CallStyle("<tool_call>", _tagged, closing=_CLOSING)
LISTED: Final = CallStyle("[TOOL_CALLS]", _json, listed=CallList())
NAMED: Final = CallStyle(
    "[TOOL_CALLS]",
    partial(_named, heads=_MISTRAL_HEADS, closings=2 * ((),)),
    around=lambda name: (f"[TOOL_CALLS]{name}[ARGS]", ""),
)
SEED: Final = CallStyle(
    "<seed:tool_call>", partial(_tagged, closing=_SEED_CLOSING), closing=_SEED_CLOSING
)
GRANITE: Final = CallStyle("<|tool_call|>", _json, listed=CallList(), around=_around_granite)
COHERE: Final = CallStyle("<|START_ACTION|>", _cohere, listed=_COHERE_LIST, around=_around_cohere)
LFM: Final = CallStyle("<|tool_call_start|>", _python, listed=_LFM_LIST, around=_around_lfm)
BARE: Final = CallStyle("{", _json, is_whole=True)
TAUGHT: Final = CallStyle("<tool_call>", _tagged, closing=_CLOSING, is_native=False)
GLM: Final = CallStyle("<tool_call>", _keyed, closing=_CLOSING)
DEEPSEEK: Final = CallStyle(
    _deepseek("tool calls begin"),
    partial(_named, heads=_DEEPSEEK_HEADS, closings=((_END,), ("```", _END))),
    listed=_DEEPSEEK_LIST,
    around=partial(_around_deepseek, is_code=False),
)
DEEPSEEK_CODE: Final = CallStyle(
    DEEPSEEK.opening,
    DEEPSEEK.make,
    listed=_DEEPSEEK_LIST,
    around=partial(_around_deepseek, is_code=True),
)
KIMI: Final = CallStyle(
    "<|tool_calls_section_begin|>",
    partial(_named, heads=_KIMI_HEADS, closings=2 * ((_KIMI_END,),)),
    listed=_KIMI_LIST,
    around=_around_kimi,
)
GEMMA: Final = CallStyle(
    "<|tool_call>",
    _gemma,
    closing="<tool_call|>",
    around=lambda name: (f"<|tool_call>call:{name}", "<tool_call|>"),
)
HARMONY: Final = CallStyle(
    (_TO_FUNCTION := f"{CHANNEL}commentary to=functions."),
    None,
    around=lambda name: (f"{_TO_FUNCTION}{name} {CONSTRAIN}json{MESSAGE}", ""),
)
_PRESENTS_TOOLS: Final = re.compile(r"\btools\b")
# By marks that no other family has; where the template does not present tools, they are taught.
_BY_MARK: Final = (
    (DEEPSEEK.opening, DEEPSEEK),
    (KIMI.opening, KIMI),
    (GEMMA.opening, GEMMA),
    (SEED.opening, SEED),
    (COHERE.opening, COHERE),
    (GRANITE.opening, GRANITE),
    (LFM.opening, LFM),
    ("<|tool_list_start|>", LFM),
    ("<arg_key>", GLM),
    ("<tool_call>", HERMES),
)


def find_call_style(template: str) -> CallStyle:
    presents = _PRESENTS_TOOLS.search(template) is not None
    if speaks_harmony(template):
        return HARMONY if presents else replace(HARMONY, is_native=False)
    for mark, style in _BY_MARK:
        if mark in template:
            is_code = style is DEEPSEEK and "```json" in template
            found = DEEPSEEK_CODE if is_code else style
            return found if presents or found is HERMES else replace(found, is_native=False)
    if "[TOOL_CALLS]" in template:
        return NAMED if "[ARGS]" in template else LISTED
    if "tools" in template and ("ipython" in template or "python_tag" in template):
        return BARE
    return TAUGHT
