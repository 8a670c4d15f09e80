"""Parsers of tool calls, which read them while they come: JSON or XML, with marks or without.

`CallParser.feed` returns None until the call has ended, and then the text behind it. If the text
is not a call, all of it is returned and becomes content: nothing that a model wrote is lost. This
is decided at the first character that cannot occur there in a call, so the result does not depend
on how the text was cut into pieces.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NoReturn

from msgspec import Struct

from .call_heads import Head, find_head
from .json_text import NotJsonError, ObjectEnd, ValueEnd
from .pieces import ARGUMENTS, CALL, CONTENT, ReplyPiece, n_open

_STRING: Final = r'"(?:[^"\\\x00-\x1f]|\\.)*"'


def name_first(key: str, before: str = "") -> re.Pattern[str]:
    """How a call begins whose name, under `key`, is in front of its arguments. `before`: the key
    of a text that may come first."""
    first = rf'(?:"{before}"\s*:\s*{_STRING}\s*,\s*)?' if before else ""
    name = rf'"{key}"\s*:\s*({_STRING})\s*,\s*'
    return re.compile(rf'\s*\{{\s*{first}{name}"(?:arguments|parameters)"\s*:\s*(?=\S)')


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)  # NaN is not JSON
_FIRST_KEY: Final = re.compile(r'\s*\{\s*(?:"([^"]*)("?))?')
_CALL_KEYS: Final = ("name", "function", "type", "id", "arguments", "parameters")
_as_text: Final = json.JSONEncoder(allow_nan=False).encode  # nor is what 1e999 is read as

Schemas = Mapping[str, Mapping[str, Any]]  # of the parameters of each tool, by its name


class CallParser(ABC):
    """Parses one call. `number` is its place in the reply."""

    def __init__(self, number: int, opening: str) -> None:
        self.number = number
        self.pieces: list[ReplyPiece] = []
        self.is_begun = False  # a piece with the name was made
        self._opening = opening  # the mark before it, which is content if this is no call
        self._text = ""  # not parsed yet; all of it until `is_begun`

    @abstractmethod
    def _read(self) -> bool:
        """Parses `_text`. Returns whether the call has ended; `_text` is then the rest."""

    def feed(self, text: str) -> str | None:
        """Returns the text behind the call if it has ended, else None. The caller empties
        `pieces`."""
        self._text += text
        return self._text if self._read() else None

    def end(self) -> str:
        """Called after the last text. Returns what is not part of the call; a mark that was cut
        off is dropped."""
        if self.is_begun:
            return ""
        self._give_up()
        return self._text

    def cut(self) -> str:
        """Called instead of `end` where the model would have gone on: arguments stay as unfinished
        as they are. Returns what cannot be a part of a call."""
        return ""

    def _begin(self, name: str) -> None:
        self.is_begun = True
        self.pieces.append(ReplyPiece(CALL, name, self.number))

    def _argue(self, text: str) -> None:
        if text:
            self.pieces.append(ReplyPiece(ARGUMENTS, text, self.number))

    def _read_closing(self, closing: str) -> bool:
        """Returns whether the mark has been read, or other text shows that it is missing."""
        if not closing:
            return True
        text = self._text = self._text.lstrip()
        if text.startswith(closing):
            self._text = text[len(closing) :]
            return True
        return not closing.startswith(text)

    def _give_up(self) -> bool:
        self.pieces.append(ReplyPiece(CONTENT, self._opening))
        return True


class JsonCall(CallParser):
    """`{"name": …, "arguments": …}`; then `closing`, which may be "".

    If the name comes first, pieces of the arguments are returned as they come.
    """

    name_key: ClassVar[str] = "name"
    head: ClassVar[re.Pattern[str]] = name_first("name")

    def __init__(self, number: int, opening: str, closing: str) -> None:
        super().__init__(number, opening)
        self._closing = closing
        self._whole = ObjectEnd()  # of the call, until it has begun
        self._value: ValueEnd | None = None  # of the arguments, while they are read
        self._tail: ObjectEnd | None = None  # of the call, behind the arguments

    def _read(self) -> bool:
        if not self.is_begun:
            try:
                is_begun = self._read_head()
            except (NotJsonError, ValueError, RecursionError):
                return self._give_up()
            if not is_begun:
                return False
        if self._value is not None and not self._read_value():
            return False
        return self._read_tail() and self._read_closing(self._closing)

    def _read_head(self) -> bool:
        head = self.head.match(self._text)
        if head is not None and self._text[head.end()] != '"':  # else JSON in a string
            self._begin_with_value(json.loads(head[1]), head.end())
            return True
        end = self._whole.find(self._text)
        if end is not None:
            self._begin_whole(end)
        return end is not None

    def _begin_with_value(self, name: str, start: int) -> None:
        self._begin(name)
        self._text, self._value = self._text[start:], ValueEnd()

    def _begin_whole(self, end: int) -> None:
        """Reads the call from a complete object, whose members may have any order."""
        found = _DECODER.decode(self._text[:end])
        inner = found.get("function")
        call = inner if isinstance(inner, dict) else found
        name = call.get(self.name_key)
        if not isinstance(name, str):
            raise NotJsonError
        arguments = call.get("arguments", call.get("parameters", {}))
        text_of_arguments = arguments if isinstance(arguments, str) else _as_text(arguments)
        self._begin(name)
        self._argue(text_of_arguments)
        self._text = self._text[end:]

    def _read_value(self) -> bool:
        assert self._value is not None, "only called while there is one"
        n = self._value.feed(self._text)
        self._argue(self._text[:n])
        self._text = "" if n is None else self._text[n:]
        if n is not None:
            self._value, self._tail = None, self._open_tail()
        return n is not None

    def _open_tail(self) -> ObjectEnd | None:
        """What is left of the call behind the arguments."""
        return ObjectEnd(is_inside=True)

    def _read_tail(self) -> bool:
        """Skips other members of the object and its brace, which may be missing. Returns whether
        they have been skipped."""
        if self._tail is not None:
            try:
                end = self._tail.find(self._text)
            except NotJsonError:
                end = 0
            if end is None:
                return False
            self._text, self._tail = self._text[end:], None
        return True

    def end(self) -> str:
        unread = self._text if self._tail is not None else ""  # else a part of the mark
        return unread if self.is_begun else super().end()

    def cut(self) -> str:
        has_mark = bool(self._opening.strip())
        return "" if self.is_begun or has_mark or _may_be_call(self._text) else self.end()


def _may_be_call(text: str) -> bool:
    """Whether an unfinished object begins with a key of calls, or may go on as one."""
    found = _FIRST_KEY.match(text)
    key, is_whole = (found[1] or "", bool(found[2])) if found else ("", False)
    return key in _CALL_KEYS if is_whole else any(each.startswith(key) for each in _CALL_KEYS)


class CohereCall(JsonCall):
    """`{"tool_call_id": "0", "tool_name": …, "parameters": …}`."""

    name_key = "tool_name"
    head = name_first("tool_name", "tool_call_id")


class NamedCall(JsonCall):
    """A head with the name, `{…}`, then closings, of which any may be missing."""

    def __init__(
        self, number: int, opening: str, heads: Sequence[Head], closings: Sequence[Sequence[str]]
    ) -> None:
        """`closings`: those of each head."""
        super().__init__(number, opening, "")
        self._heads, self._closings = heads, closings
        self._to_close: list[str] = []

    def _read_head(self) -> bool:
        found = find_head(self._heads, self._text, "{")
        if found is None:
            return False
        self._to_close = list(self._closings[found.which])
        self._begin_with_value(found.name, found.end)
        return True

    def _open_tail(self) -> None:
        return None

    def _read_closing(self, closing: str) -> bool:
        while self._to_close:
            if not super()._read_closing(self._to_close[0]):
                return False
            self._to_close.pop(0)
        return True


class XmlForm(Struct, frozen=True):
    """How a call is written in marks."""

    head: re.Pattern[str]  # with the name
    may_begin: Callable[[str], bool]  # whether a text may still become a head
    parameter: re.Pattern[str]  # key and value
    open_parameter: re.Pattern[str]  # the same, not ended
    may_go_on: Callable[[str], bool]  # whether a text may become a parameter
    value_closing: str
    end: re.Pattern[str]  # behind the last parameter


_KEY: Final = r"([^<>\n]{1,256})"
FUNCTION_FORM: Final = XmlForm(
    re.compile(rf"\s*<function={_KEY}>\s*"),
    lambda text: _may_become("<function=", text),
    re.compile(rf"\s*<parameter={_KEY}>\n?(.*?)\n?</parameter>", re.DOTALL),
    re.compile(rf"\s*<parameter={_KEY}>\n?(.*)", re.DOTALL),
    lambda text: _may_become("<parameter=", text),
    "</parameter>",
    re.compile(r"\s*</function>\s*"),
)
_GLM_NAME: Final = re.compile(r"\s*[\w.\-]{0,128}\s*")


def _may_be_glm(text: str) -> bool:
    found = _GLM_NAME.match(text)
    rest = text[found.end() :] if found else text
    return any(mark.startswith(rest) for mark in ("<arg_key>", "</tool_call>"))


def _may_be_keyed(text: str) -> bool:
    key = text.removeprefix("<arg_key>")
    if key == text:
        return "<arg_key>".startswith(text)
    key, mark, rest = key.partition("</arg_key>")
    if mark:
        return "<arg_value>".startswith(rest.lstrip())
    name, opened, rest = key.partition("<")
    is_name = len(name) <= 256 and not set(name) & set(">\n")
    return is_name and (not opened or "/arg_key>".startswith(rest))


KEYED_FORM: Final = XmlForm(
    re.compile(r"\s*([\w.\-]{1,128})\s*(?=<arg_key>|</tool_call>)"),
    _may_be_glm,
    re.compile(rf"\s*<arg_key>{_KEY}</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL),
    re.compile(rf"\s*<arg_key>{_KEY}</arg_key>\s*<arg_value>(.*)", re.DOTALL),
    _may_be_keyed,
    "</arg_value>",
    re.compile(r"\s*(?=</tool_call>)"),
)


class XmlCall(CallParser):
    """A name, and a key and a value of each parameter, in marks of `form`; then `closing`.

    A value ends at its closing mark; the other marks may occur in it.
    """

    def __init__(
        self,
        number: int,
        opening: str,
        closing: str,
        schemas: Schemas,
        form: XmlForm = FUNCTION_FORM,
    ) -> None:
        super().__init__(number, opening)
        self._form = form
        self._closing, self._schemas = closing, schemas
        self._properties: Mapping[str, Any] = {}
        self._n_parameters = 0
        self._is_past = False

    def _read(self) -> bool:
        if not self.is_begun:
            head = self._form.head.match(self._text)
            if head is None:
                return False if self._form.may_begin(self._text) else self._give_up()
            name = head[1].strip()
            self._begin(name)
            properties = self._schemas.get(name, {}).get("properties")
            self._properties = properties if isinstance(properties, dict) else {}
            self._text = self._text[head.end() :]
        while not self._is_past:
            form = self._form
            ends = form.value_closing in self._text  # cheaper than a match while a long value comes
            if ends and (parameter := form.parameter.match(self._text)):
                self._argue(self._lead(parameter[1]) + self._as_json(parameter[1], parameter[2]))
                self._text = self._text[parameter.end() :]
            elif end := form.end.match(self._text):
                self._text = self._text[end.end() :]
                self._close()
            elif self._goes_on():
                return False
            else:  # the function was not closed
                self._close()
        return self._read_closing(self._closing)

    def _goes_on(self) -> bool:
        """Returns whether the text may still become one of the marks, or is in a parameter."""
        text = self._text.lstrip()
        form = self._form
        if form.open_parameter.match(text) or form.may_go_on(text):
            return True
        return any(mark.startswith(text) for mark in ("</function>", self._closing) if mark != text)

    def _lead(self, key: str) -> str:
        lead = ", " if self._n_parameters else "{"
        self._n_parameters += 1
        return f"{lead}{json.dumps(key.strip())}: "

    def _as_json(self, key: str, value: str) -> str:
        """Returns the value as JSON of the type in the schema, as XML has strings only."""
        if not self._is_string(key):
            try:
                return _as_text(_DECODER.decode(value.strip()))
            except (ValueError, RecursionError):
                pass
        return json.dumps(value)

    def _is_string(self, key: str) -> bool:
        schema = self._properties.get(key.strip())
        return not isinstance(schema, dict) or "string" in _types(schema)

    def _close(self) -> None:
        self._is_past = True
        self._argue("}" if self._n_parameters else "{}")

    def end(self) -> str:
        if not self.is_begun or self._is_past:
            return super().end()
        left = ""
        if parameter := self._form.open_parameter.match(self._text):
            value, closing, left = parameter[2].partition(self._closing)
            self._argue(self._lead(parameter[1]))
            if not closing:  # cut off: JSON as unfinished as the call
                self._argue(json.dumps(value)[:-1])
                return ""
            # Only `</parameter>` is missing.
            value = value.rstrip().removesuffix("</function>").rstrip()
            self._argue(self._as_json(parameter[1], value))
        self._close()
        return left

    def cut(self) -> str:
        parameter = self._form.open_parameter.match(self._text)
        if not self.is_begun or self._is_past or parameter is None:
            return ""
        value = parameter[2]
        if self._closing in value:  # the call has ended
            return self.end()
        n_mark = n_open(value, (self._form.value_closing,))
        value = value[: len(value) - n_mark].removesuffix("\n")
        begun = json.dumps(value)[:-1] if self._is_string(parameter[1]) else value
        self._argue(self._lead(parameter[1]) + begun)
        return ""


def _may_become(opening: str, text: str) -> bool:
    """Returns whether `text` may be the start of `opening`, a name and `>`."""
    text = text.lstrip()
    name = text.removeprefix(opening)
    if name == text:
        return opening.startswith(text)
    return len(name) <= 256 and not set(name) & set("<>\n")


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kind = schema.get("type", "string")
    return (kind,) if isinstance(kind, str) else tuple(map(str, kind))
