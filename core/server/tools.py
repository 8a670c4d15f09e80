"""Tools of a chat: reads them, describes them to the model, and constrains forced calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .fields import Fields
from .reply import CallStyle
from .reply.styles import BARE, LISTED, NAMED

MAX_TOOLS: Final = 128
_MAX_NAME: Final = 256
NONE, AUTO, REQUIRED = "none", "auto", "required"
_ANYTHING: Final[Mapping[str, Any]] = {"type": "object"}
_LESSON: Final = """You may call one or more of these functions:
<tools>
{tools}
</tools>
To call one, write nothing but its name and arguments as JSON within <tool_call> marks:
<tool_call>
{{"name": "...", "arguments": {{...}}}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Tools:
    given: tuple[dict[str, Any], ...] = ()
    choice: str = AUTO
    name: str = ""  # of the one that has to be called
    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)  # of parameters, by name

    @property
    def is_offered(self) -> bool:
        """Whether the tools are part of the prompt."""
        return bool(self.given) and self.choice != NONE

    @property
    def is_forced(self) -> bool:
        return self.choice == REQUIRED or bool(self.name)

    def forms(self, style: CallStyle) -> list[tuple[str, Any, str]]:
        """Returns the forms of a forced call: the text before, the schema, and the text after."""
        names = [self.name] if self.name else list(self.schemas)
        return [_form(style, name, self.schemas[name]) for name in names]

    def taught(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns messages with the tools in the system message, for a template without tools."""
        shown = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in self.given)
        lesson = _LESSON.format(tools=shown)
        if messages and messages[0].get("role") == "system":
            first = messages[0] | {"content": f"{messages[0]['content']}\n\n{lesson}"}
            return [first, *messages[1:]]
        return [{"role": "system", "content": lesson}, *messages]


def _form(style: CallStyle, name: str, schema: Any) -> tuple[str, Any, str]:
    quoted = json.dumps(name, ensure_ascii=False)
    if style is NAMED:
        return f"{style.opening}{name}[ARGS]", schema, ""
    key = "parameters" if style is BARE else "arguments"
    before, after = f'{{"name": {quoted}, "{key}": ', "}"
    if style is BARE:
        return before, schema, after
    if style is LISTED:
        return f"{style.opening}[{before}", schema, f"{after}]"
    return f"{style.opening}\n{before}", schema, f"{after}\n{style.closing}"


def read_tools(fields: Fields) -> Tools:
    given = fields.items("tools")
    if len(given) > MAX_TOOLS:
        fields.refuse("tools", f"may be at most {MAX_TOOLS}, got {len(given)}")
    schemas: dict[str, dict[str, Any]] = {}
    for i, tool in enumerate(given):
        name, schema = _read_tool(fields, i, tool)
        if name in schemas:
            fields.refuse(f"tools[{i}]", f"has the name of another one, {name!r}")
        schemas[name] = schema
    choice, name = _read_choice(fields)
    if name and name not in schemas:
        fields.refuse("tool_choice", f"names {name[:60]!r}, which is not among the tools")
    if choice == REQUIRED and not given:
        fields.refuse("tool_choice", "is required, but there are no tools")
    return Tools(tuple(given), choice, name, schemas)


def _read_tool(fields: Fields, i: int, tool: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(tool, dict):
        fields.refuse(f"tools[{i}]", "must be an object")
    each = Fields(tool, f"tools[{i}].")
    each.one_of("type", ("function",), "function")
    function = each.inner("function")
    name = function.text("name")
    if not name or len(name) > _MAX_NAME or not name.isprintable():
        function.refuse("name", f"must have 1 to {_MAX_NAME} printable characters")
    return name, dict(function.inner("parameters").values or _ANYTHING)


def _read_choice(fields: Fields) -> tuple[str, str]:
    value = fields.get("tool_choice")
    if isinstance(value, dict):
        inner = fields.inner("tool_choice")
        source = inner.inner("function") if "function" in inner else inner
        return AUTO, source.text("name") or ""
    return fields.one_of("tool_choice", (NONE, AUTO, REQUIRED), AUTO), ""


def read_past_calls(message: Fields) -> list[dict[str, Any]] | None:
    """Returns earlier calls of the model, with arguments as objects, as templates expect."""
    if "tool_calls" not in message:
        return None
    return [_past_call(message, i, call) for i, call in enumerate(message.items("tool_calls"))]


def _past_call(message: Fields, i: int, call: Any) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        message.refuse(f"tool_calls[{i}]", "must be an object with a function")
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            message.refuse(f"tool_calls[{i}].function.arguments", "must be JSON")
    return {**call, "type": "function", "function": function}
