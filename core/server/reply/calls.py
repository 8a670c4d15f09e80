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
from collections.abc import Mapping
from typing import Any, Final, NoReturn

from .json_text import NotJsonError, ObjectEnd, ValueEnd
from .pieces import ARGUMENTS, CALL, CONTENT, ReplyPiece

_NAME_FIRST: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\\x00-\x1f]|\\.)*")\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*(?=\S)'
)
_ARGS: Final = "[ARGS]"
_NAMED: Final = re.compile(r"\s*([\w.\-]{1,128})\s*\[ARGS\]\s*(?=\{)")
_NAME: Final = re.compile(r"\s*[\w.\-]{0,128}\s*")
_FUNCTION: Final = re.compile(r"\s*<function=([^<>\n]{1,256})>\s*")
_PARAMETER: Final = re.compile(r"\s*<parameter=([^<>\n]{1,256})>\n?(.*?)\n?</parameter>", re.DOTALL)
_OPEN_PARAMETER: Final = re.compile(r"\s*<parameter=([^<>\n]{1,256})>\n?(.*)", re.DOTALL)
_END_OF_FUNCTION: Final = re.compile(r"\s*</function>\s*")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse)  # NaN is not JSON
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
    """`{"name": …, "arguments": …}`, or `name[ARGS]{…}`; then `closing`, which may be "".

    If the name comes first, pieces of the arguments are returned as they come.
    """

    def __init__(self, number: int, opening: str, closing: str, *, named: bool = False) -> None:
        super().__init__(number, opening)
        self._closing, self._named = closing, named
        self._whole = ObjectEnd()  # of the call, until it has begun
        self._value: ValueEnd | None = None  # of the arguments, while they are read
        self._tail: ObjectEnd | None = None  # of the call, behind the arguments

    def _read(self) -> bool:
        if not self.is_begun:
            try:
                is_begun = self._read_name() if self._named else self._read_head()
            except (NotJsonError, ValueError, RecursionError):
                return self._give_up()
            if not is_begun:
                return False
        if self._value is not None and not self._read_value():
            return False
        return self._read_tail() and self._read_closing(self._closing)

    def _read_name(self) -> bool:
        if head := _NAMED.match(self._text):
            self._begin_with_value(head[1], head.end())
            return True
        name = _NAME.match(self._text)
        mark = self._text[name.end() if name else 0 :]
        if not _ARGS.startswith(mark) and mark.rstrip() != _ARGS:
            raise NotJsonError
        return False

    def _read_head(self) -> bool:
        head = _NAME_FIRST.match(self._text)
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
        if not isinstance(call.get("name"), str):
            raise NotJsonError
        arguments = call.get("arguments", call.get("parameters", {}))
        text_of_arguments = arguments if isinstance(arguments, str) else _as_text(arguments)
        self._begin(call["name"])
        self._argue(text_of_arguments)
        self._text = self._text[end:]

    def _read_value(self) -> bool:
        assert self._value is not None, "only called while there is one"
        n = self._value.feed(self._text)
        self._argue(self._text[:n])
        self._text = "" if n is None else self._text[n:]
        if n is not None:
            self._value, self._tail = None, None if self._named else ObjectEnd(is_inside=True)
        return n is not None

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


class XmlCall(CallParser):
    """`<function=name><parameter=key>value</parameter>…</function>`, then `closing`.

    A value ends at `</parameter>`; the other marks may occur in it.
    """

    def __init__(self, number: int, opening: str, closing: str, schemas: Schemas) -> None:
        super().__init__(number, opening)
        self._closing, self._schemas = closing, schemas
        self._properties: Mapping[str, Any] = {}
        self._n_parameters = 0
        self._is_past = False

    def _read(self) -> bool:
        if not self.is_begun:
            head = _FUNCTION.match(self._text)
            if head is None:
                return False if _may_become("<function=", self._text) else self._give_up()
            name = head[1].strip()
            self._begin(name)
            properties = self._schemas.get(name, {}).get("properties")
            self._properties = properties if isinstance(properties, dict) else {}
            self._text = self._text[head.end() :]
        while not self._is_past:
            ends = "</parameter>" in self._text  # cheaper than a match while a long value comes
            if ends and (parameter := _PARAMETER.match(self._text)):
                self._argue(self._lead(parameter[1]) + self._as_json(parameter[1], parameter[2]))
                self._text = self._text[parameter.end() :]
            elif end := _END_OF_FUNCTION.match(self._text):
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
        if _OPEN_PARAMETER.match(text) or _may_become("<parameter=", text):
            return True
        return any(mark.startswith(text) for mark in ("</function>", self._closing) if mark != text)

    def _lead(self, key: str) -> str:
        lead = ", " if self._n_parameters else "{"
        self._n_parameters += 1
        return f"{lead}{json.dumps(key.strip())}: "

    def _as_json(self, key: str, value: str) -> str:
        """Returns the value as JSON of the type in the schema, as XML has strings only."""
        schema = self._properties.get(key.strip())
        if isinstance(schema, dict) and "string" not in _types(schema):
            try:
                return _as_text(_DECODER.decode(value.strip()))
            except (ValueError, RecursionError):
                pass
        return json.dumps(value)

    def _close(self) -> None:
        self._is_past = True
        self._argue("}" if self._n_parameters else "{}")

    def end(self) -> str:
        if not self.is_begun or self._is_past:
            return super().end()
        left = ""
        if parameter := _OPEN_PARAMETER.match(self._text):
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
