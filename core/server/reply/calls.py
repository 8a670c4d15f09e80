"""Calls as models write them, read while they come: JSON or XML, with marks or without.

A parser gets text until it says what is left over: then its call has ended. What turns out not
to be a call is given back as content, so that nothing a model wrote is ever lost.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from .pieces import ARGUMENTS, CALL, CONTENT, Piece, n_open

_NAME_FIRST: Final = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)'
)
_NAMED: Final = re.compile(r"\s*([\w.\-]{1,128})\s*\[ARGS\]\s*(?=\{)")
_FUNCTION: Final = re.compile(r"\s*<function=([^>\n]{1,256})>\s*")
_PARAMETER: Final = re.compile(r"\s*<parameter=([^>\n]{1,256})>\n?(.*?)\n?</parameter>", re.DOTALL)
_END_OF_FUNCTION: Final = re.compile(r"\s*</function>\s*")
_DECODER: Final = json.JSONDecoder()

Schemas = Mapping[str, Mapping[str, Any]]  # of the parameters of each tool, by its name


class CallParser(ABC):
    """One call. `number` is its place in the reply."""

    def __init__(self, number: int, opening: str) -> None:
        self.number = number
        self.pieces: list[Piece] = []
        self.is_begun = False  # a name was told
        self._all = opening  # what was written, in case it is no call
        self._text = ""  # not read yet

    @abstractmethod
    def _read(self) -> bool:
        """Go on with `_text`; whether the call has ended, and `_text` is what is left."""

    def feed(self, text: str) -> str | None:
        """What is left when the call has ended, else None; `pieces` are for the caller to take."""
        self._all += text
        self._text += text
        return self._text if self._read() else None

    def end(self) -> None:
        """No more text comes."""
        if not self.is_begun:
            self.pieces.append(Piece(CONTENT, self._all))

    def _begin(self, name: str) -> None:
        self.is_begun = True
        self.pieces.append(Piece(CALL, name, self.number))

    def _argue(self, text: str) -> None:
        if text:
            self.pieces.append(Piece(ARGUMENTS, text, self.number))

    def _read_closing(self, closing: str) -> bool:
        """Whether the mark has come, or something else that shows that it is missing."""
        if not closing:
            return True
        text = self._text = self._text.lstrip()
        if text.startswith(closing):
            self._text = text[len(closing) :]
            return True
        return bool(text) and n_open(text, closing) < len(text)

    def _give_up(self) -> bool:
        self.pieces.append(Piece(CONTENT, self._all))
        self._text = ""
        return True


class JsonCall(CallParser):
    """`{"name": …, "arguments": …}`, or `name[ARGS]{…}`; then `closing`, which may be "".

    Arguments are told as they come if the name comes before them.
    """

    def __init__(self, number: int, opening: str, closing: str, *, named: bool = False) -> None:
        super().__init__(number, opening)
        self._closing, self._named = closing, named
        self._value: JsonEnd | None = None  # of the arguments, while they are read
        self._is_past = False  # of the arguments
        self._wants_brace = False  # the one behind them is still to come

    def _read(self) -> bool:
        if not self.is_begun and not self._read_head():
            # Neither JSON nor its beginning: with the mark that closes, it can only be content.
            is_closed = bool(self._closing) and self._closing in self._text
            return self._give_up() if is_closed or self._is_hopeless() else False
        if self._value is not None:
            self._text = self._read_value(self._text)
        return self._is_past and self._read_tail()

    def _is_hopeless(self) -> bool:
        start = self._text.lstrip()[:1]
        return bool(start) and not self._named and start != "{"

    def _read_head(self) -> bool:
        head = (_NAMED if self._named else _NAME_FIRST).match(self._text)
        if head is not None:
            if self._text[head.end() :][:1] == '"':  # arguments as a string of JSON
                return self._read_whole()
            self._begin(head[1] if self._named else json.loads(head[1]))
            self._text, self._value = self._text[head.end() :], JsonEnd()
            return True
        return not self._named and self._read_whole()

    def _read_whole(self) -> bool:
        """A complete object with its members in any order."""
        start = len(self._text) - len(self._text.lstrip())
        try:
            found, end = _DECODER.raw_decode(self._text, start)
        except (ValueError, RecursionError):
            return False
        inner = found.get("function") if isinstance(found, dict) else None
        call = inner if isinstance(inner, dict) else found
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return False
        arguments = call.get("arguments", call.get("parameters", {}))
        self._begin(call["name"])
        self._argue(arguments if isinstance(arguments, str) else json.dumps(arguments))
        self._text, self._is_past = self._text[end:], True
        return True

    def _read_value(self, text: str) -> str:
        assert self._value is not None, "only called while there is one"
        n = self._value.feed(text)
        self._argue(text if n is None else text[:n])
        if n is None:
            return ""
        self._value, self._is_past, self._wants_brace = None, True, not self._named
        return text[n:]

    def _read_tail(self) -> bool:
        if self._wants_brace:
            text = self._text.lstrip()
            if not text:
                return False
            self._text, self._wants_brace = text.removeprefix("}"), False
        return self._read_closing(self._closing)


class XmlCall(CallParser):
    """`<function=name><parameter=key>value</parameter>…</function>`, then `closing`."""

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
                return self._give_up() if self._closing in self._text else False
            name = head[1].strip()
            self._begin(name)
            properties = self._schemas.get(name, {}).get("properties")
            self._properties = properties if isinstance(properties, dict) else {}
            self._text = self._text[head.end() :]
        while not self._is_past:
            if parameter := _PARAMETER.match(self._text):
                self._add(parameter[1].strip(), parameter[2])
            elif parameter := _END_OF_FUNCTION.match(self._text):
                self._close()
            elif self._closing in self._text:  # the function was not closed
                self._text = self._text[self._text.index(self._closing) :]
                self._close()
                break
            else:
                return False
            self._text = self._text[parameter.end() :]
        return self._read_closing(self._closing)

    def _add(self, key: str, value: str) -> None:
        lead = ", " if self._n_parameters else "{"
        self._n_parameters += 1
        self._argue(f"{lead}{json.dumps(key)}: {self._as_json(key, value)}")

    def _as_json(self, key: str, value: str) -> str:
        """As the schema types it: XML knows strings only."""
        schema = self._properties.get(key)
        if isinstance(schema, dict) and "string" not in _types(schema):
            try:
                return json.dumps(_DECODER.decode(value.strip()))
            except (ValueError, RecursionError):
                pass
        return json.dumps(value)

    def _close(self) -> None:
        self._is_past = True
        self._argue("}" if self._n_parameters else "{}")

    def end(self) -> None:
        if self.is_begun and not self._is_past:
            self._close()
        super().end()


def _types(schema: Mapping[str, Any]) -> tuple[str, ...]:
    kind = schema.get("type", "string")
    return (kind,) if isinstance(kind, str) else tuple(map(str, kind))


class JsonEnd:
    """Finds where a JSON object or list ends that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = self._is_escaped = False

    def feed(self, text: str) -> int | None:
        """How many characters of `text` belong to it; None: all, and it goes on."""
        for i, character in enumerate(text):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return i + (self._depth == 0)
            elif self._depth == 0 and character in ",\n":  # not an object, against the rules
                return i
        return None
