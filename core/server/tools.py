"""Tools of a chat: reads them, describes them to the model, and constrains forced calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field

from ..sampling.forms import PLACE
from .body_parts import ToolChoice
from .reply import CallStyle
from .reply.styles import BARE, LISTED
from .request_bodies import ChatBody
from .request_decoding import refuse

NONE, AUTO, REQUIRED = "none", "auto", "required"
_ANYTHING: Final[Mapping[str, Any]] = {"type": "object"}
_LESSON: Final = """You may call one or more of these functions:
<tools>
{tools}
</tools>
{how}"""
_TAGGED: Final = (
    "To call one, write nothing but its name and arguments as JSON within {opening} marks:\n"
    '{opening}\n{{"name": "...", "arguments": {{...}}}}\n{closing}'
)
_MARKED: Final = (
    "To call one, write nothing but this, its name for NAME and its arguments as JSON:\n"
)


class Tools(Struct, frozen=True):
    given: tuple[dict[str, Any], ...] = ()
    choice: str = AUTO
    name: str = ""  # of the one that has to be called
    schemas: dict[str, dict[str, Any]] = field(default_factory=dict)  # of parameters, by name
    is_single: bool = False  # a reply ends behind its first call

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
        schemas = [(name, self.schemas[name] | {PLACE: f"tool {name}: "}) for name in names]
        return [_form(style, name, schema) for name, schema in schemas]

    def taught(self, messages: list[dict[str, Any]], style: CallStyle) -> list[dict[str, Any]]:
        """Returns messages with the tools in the system message, for a template without tools."""
        shown = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in self.given)
        if style.around is None:
            how = _TAGGED.format(opening=style.opening, closing=style.closing)
        else:
            how = _MARKED + "{...}".join(style.around("NAME"))
        lesson = _LESSON.format(tools=shown, how=how)
        if messages and messages[0].get("role") == "system":
            first = messages[0] | {"content": f"{messages[0]['content']}\n\n{lesson}"}
            return [first, *messages[1:]]
        return [{"role": "system", "content": lesson}, *messages]


def _form(style: CallStyle, name: str, schema: Any) -> tuple[str, Any, str]:
    quoted = json.dumps(name, ensure_ascii=False)
    if style.around is not None:
        before, after = style.around(name)
        return before, schema, after
    key = "parameters" if style is BARE else "arguments"
    before, after = f'{{"name": {quoted}, "{key}": ', "}"
    if style is BARE:
        return before, schema, after
    if style is LISTED:
        return f"{style.opening}[{before}", schema, f"{after}]"
    return f"{style.opening}\n{before}", schema, f"{after}\n{style.closing}"


def read_tools(body: ChatBody) -> Tools:
    schemas: dict[str, dict[str, Any]] = {}
    for i, tool in enumerate(body.tools or []):
        name = tool.function.name
        if not name.isprintable():
            refuse(f"tools[{i}].function.name", "must have printable characters only")
        if name in schemas:
            refuse(f"tools[{i}]", f"has the name of another one, {name!r}")
        schemas[name] = dict(tool.function.parameters or _ANYTHING)
    choice, name = _read_choice(body)
    if name and name not in schemas:
        refuse("tool_choice", f"names {name[:60]!r}, which is not among the tools")
    if choice == REQUIRED and not schemas:
        refuse("tool_choice", "is required, but there are no tools")
    is_single = body.parallel_tool_calls is False
    return Tools(tuple(body.given.get("tools") or ()), choice, name, schemas, is_single)


def _read_choice(body: ChatBody) -> tuple[str, str]:
    choice = body.tool_choice
    if isinstance(choice, ToolChoice):
        return AUTO, (choice.function or choice).name or ""
    return choice or AUTO, ""


def read_past_call(call: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns an earlier call of the model, with arguments as an object, as templates expect."""
    function = dict(call["function"])
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            function["arguments"] = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            refuse(f"{where}.function.arguments", "must be JSON")
    return {**call, "type": "function", "function": function}
