"""What of a JSON schema a grammar can express: the rest is left out, with a note for each place.

Places are JSON pointers as `$ref` has them, such as `#/properties/a/pattern`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote, urldefrag, urljoin

from ..errors import ConfigError

Check = Callable[[Any], str]  # what is wrong with a schema; empty: nothing
Schema = dict[str, Any]

NOT_ENFORCED: Final = (
    "uniqueItems", "not", "contains", "propertyNames", "dependentRequired", "dependentSchemas",
    "dependencies", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
    "if",
)  # fmt: skip
_WITH: Final = {"contains": ("minContains", "maxContains"), "if": ("then", "else")}
_IDLE: Final[dict[str, tuple[object, ...]]] = {  # values that demand nothing
    "uniqueItems": (False,), "propertyNames": (True, {}), "dependentRequired": ({},),
    "dependentSchemas": ({},), "dependencies": ({},), "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
}  # fmt: skip
# With these, other schemas may evaluate members of the same object or list.
_IN_PLACE: Final = (
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef",
    "$recursiveRef", "dependentSchemas", "dependencies", "contains",
)  # fmt: skip
_ONE: Final = ("items", "additionalItems", "additionalProperties")
_NAMED: Final = ("properties", "$defs", "definitions", "patternProperties")
_LISTED: Final = ("prefixItems", "allOf", "anyOf", "oneOf", "items")
_COUNTS: Final = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_STANDARD: Final = re.compile(r"https?://json-schema\.org/")
# Of a valid expression of JavaScript's, which automata or Rust's syntax cannot express.
_EMPTY: Final = "Unsatisfiable"  # the beginning of an error: nothing follows the schema
_BEYOND_RUST: Final = ("look-around", "backreferences", "unrecognized escape")


def enforceable(schema: Any, check: Check) -> tuple[Any, list[str]]:
    """A copy that a grammar can follow, and a note for each keyword that it lost. Raises a
    ConfigError that names the place of a wrong regular expression."""
    work = _Work(schema, check)
    return work.copy(schema, "#", ""), work.notes


def faulty_place(schema: Any, check: Check) -> tuple[str, str]:
    """The innermost schema with the error that the whole has, and its error."""
    error, place = check(schema), "#"
    definitions = _definitions(schema)
    found = True
    while found:
        found = False
        for name, child in _children(schema):
            if child is False and "schema is false" in error:
                return f"{place}/{name}", error
            inner = check(definitions | child) if isinstance(child, dict) else ""
            if inner == error or (inner.startswith(_EMPTY) and error.startswith(_EMPTY)):
                schema, place, error, found = child, f"{place}/{name}", inner, True
                break
    return place, error


class _Work:
    def __init__(self, schema: Any, check: Check) -> None:
        self._check, self.notes = check, list[str]()
        self._documents = {"", *_documents(schema, "")}
        self._definitions = _definitions(schema)

    def copy(self, schema: Any, place: str, base: str) -> Any:
        """`base`: the URI that references are relative to."""
        if not isinstance(schema, dict):
            return schema
        base = _base(schema, base)
        found = dict(schema)
        if not _STANDARD.match(str(found.get("$schema", "https://json-schema.org/"))):
            del found["$schema"]
        self._move_unevaluated(found)
        self._leave_out_keywords(found, place)
        self._leave_out_reference(found, place, base)
        self._leave_out_text(found, place)
        self._leave_out_numbers(found, place)
        self._leave_out_patterns(found, place)
        self._note_one_of(found, place)
        for name in _COUNTS:
            if isinstance(found.get(name), float) and found[name].is_integer():
                found[name] = int(found[name])
        for name in _ONE:
            if isinstance(found.get(name), dict):
                found[name] = self.copy(found[name], f"{place}/{name}", base)
        for name in _NAMED:
            if isinstance(found.get(name), dict):
                inside = found[name].items()
                found[name] = {
                    key: self.copy(each, f"{place}/{name}/{_escaped(key)}", base)
                    for key, each in inside
                }
        for name in _LISTED:
            if isinstance(found.get(name), list):
                found[name] = [
                    self.copy(each, f"{place}/{name}/{i}", base)
                    for i, each in enumerate(found[name])
                ]
        return found

    def _note(self, place: str, text: str = "is not enforced") -> None:
        self.notes.append(f"{place} {text}")

    def _move_unevaluated(self, found: Schema) -> None:
        """Alone, they mean the same as keywords that are enforced."""
        if any(name in found for name in _IN_PLACE):
            return
        for name, other in (
            ("unevaluatedProperties", "additionalProperties"),
            ("unevaluatedItems", "items"),
        ):
            if name in found:
                value = found.pop(name)
                found.setdefault(other, value)

    def _leave_out_keywords(self, found: Schema, place: str) -> None:
        for name in NOT_ENFORCED:
            if name not in found:
                continue
            more = [found.pop(each) for each in _WITH.get(name, ()) if each in found]
            value = found.pop(name)
            is_idle = not more if name == "if" else value in _IDLE.get(name, ())
            if not is_idle:
                self._note(f"{place}/{name}")

    def _leave_out_reference(self, found: Schema, place: str, base: str) -> None:
        reference = found.get("$ref")
        if not isinstance(reference, str):
            return
        document = urldefrag(urljoin(base, reference)).url
        if document in self._documents:
            return
        if _STANDARD.match(document):  # llguidance has them; they use `$dynamicRef`
            self._note(f"{place}/$ref", "is enforced in part")
        else:
            del found["$ref"]
            self._note(f"{place}/$ref", "is not enforced: it refers to another document")

    def _leave_out_text(self, found: Schema, place: str) -> None:
        name = found.get("format")
        if isinstance(name, str) and self._check({"type": "string", "format": name}):
            del found["format"]
            self._note(f"{place}/format")
        pattern = found.get("pattern")
        if isinstance(pattern, str) and not self._is_expressible(pattern, f"{place}/pattern"):
            del found["pattern"]

    def _is_expressible(self, pattern: str, place: str) -> bool:
        error = self._check({"type": "string", "pattern": pattern})
        if not error:
            return True
        if not any(each in error for each in _BEYOND_RUST):
            raise ConfigError(f"the JSON schema cannot be followed at {place}: {error}")
        self._note(place)
        return False

    def _leave_out_numbers(self, found: Schema, place: str) -> None:
        for names in (("multipleOf",), _BOUNDS):
            given = {name: found[name] for name in names if name in found}
            if not given:
                continue
            error = self._check({"type": found.get("type", "number"), **given})
            if "too many digits" in error or "Failed to generate regex" in error:
                for name in given:
                    del found[name]
                    self._note(f"{place}/{name}")

    def _leave_out_patterns(self, found: Schema, place: str) -> None:
        given = found.get("patternProperties")
        if not isinstance(given, dict):
            return
        place = f"{place}/patternProperties"
        kept = {
            pattern: schema
            for pattern, schema in given.items()
            if self._is_expressible(pattern, f"{place}/{_escaped(pattern)}")
        }
        error = self._check({"patternProperties": {each: {"type": "null"} for each in kept}})
        if "not disjoint" in error:
            self._note(place, "is not enforced: several expressions match one name")
            kept = {}
        found["patternProperties"] = kept

    def _note_one_of(self, found: Schema, place: str) -> None:
        if isinstance(found.get("oneOf"), list):
            error = self._check(self._definitions | {"oneOf": found["oneOf"]})
            if error.startswith("oneOf"):
                self._note(f"{place}/oneOf", "is enforced as anyOf")


def _definitions(schema: Any) -> Schema:
    """For schemas inside it that are tried alone."""
    names = ("$defs", "definitions")
    return {name: schema[name] for name in names if isinstance(schema, dict) and name in schema}


def _children(schema: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(schema, dict):
        return
    for name in _ONE:
        if name in schema:
            yield name, schema[name]
    for name in _NAMED:
        if isinstance(schema.get(name), dict):
            for key, each in schema[name].items():
                yield f"{name}/{_escaped(key)}", each
    for name in _LISTED:
        if isinstance(schema.get(name), list):
            for i, each in enumerate(schema[name]):
                yield f"{name}/{i}", each


def _documents(schema: Any, base: str) -> Iterator[str]:
    """The URIs of a schema and of those inside it that have one."""
    if isinstance(schema, dict):
        base = _base(schema, base)
        yield urldefrag(base).url
    for _, child in _children(schema):
        yield from _documents(child, base)


def _base(schema: Schema, base: str) -> str:
    name = schema.get("$id")
    return urljoin(base, name) if isinstance(name, str) else base


def _escaped(key: str) -> str:
    return quote(key.replace("~", "~0").replace("/", "~1"), safe="~!$&'()*+,;=:@")
