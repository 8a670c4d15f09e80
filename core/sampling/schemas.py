"""JSON schemas as a model should follow them: objects have the members they name, and no others.

JSON schema allows any further member where it names none, and a small model then never ends an
object. llama.cpp takes silence for "no others" too. Every text that follows is still valid.
"""

from __future__ import annotations

from typing import Any, Final

# Keywords that restrict the same object beyond its own members.
_OPEN: Final = (
    "additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
    "minProperties", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref",
    "dependentSchemas", "dependentRequired",
)  # fmt: skip
_ONE: Final = ("items", "additionalProperties", "contains")
_MANY: Final = ("properties", "$defs", "definitions", "patternProperties")
_LISTS: Final = ("prefixItems", "anyOf", "oneOf")


def closed(schema: Any) -> Any:
    """A copy in which silence about further members means that there are none."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in _ONE:
        if name in found:
            found[name] = closed(found[name])
    for name in _MANY:
        if isinstance(found.get(name), dict):
            found[name] = {key: closed(value) for key, value in found[name].items()}
    for name in _LISTS:
        if isinstance(found.get(name), list) and "properties" not in found:
            found[name] = [closed(each) for each in found[name]]
    if _says_all(found):
        found["additionalProperties"] = False
    return found


def _says_all(schema: dict[str, Any]) -> bool:
    members = schema.get("properties")
    if not isinstance(members, dict) or not members or any(name in schema for name in _OPEN):
        return False
    required = schema.get("required", ())
    return isinstance(required, list | tuple) and all(name in members for name in required)
