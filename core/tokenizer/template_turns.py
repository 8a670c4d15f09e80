"""Jinja for formats that are turns: what stands before and behind the text of each role."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Final

Turn = tuple[str, str]  # before and behind a message's text
TEXT: Final = "{{ m.content }}"
TRIMMED: Final = "{{ m.content | trim }}"
ALL: Final = ("system", "user", "assistant", "tool", "")  # roles; the last stands for others


def turns(
    by_role: Mapping[str, Turn], prompt: str = "", *, start: str = "", trims: Collection[str] = ()
) -> str:
    """A template of turns by role, where "" is any other; messages of roles that are missing are
    left out. `prompt`: what the model goes on with. `trims`: roles whose texts are trimmed."""
    return written(start) + for_each(choice(by_role, trims)) + going_on(prompt)


def named_turns(
    before: str,
    behind_role: str,
    behind: str = "",
    *,
    prompt: str | None = None,
    start: str = "",
    role: str = "m.role",
    trims: bool = False,
) -> str:
    """Of any role, by its name. `prompt`: None is the beginning of a turn of the assistant."""
    text = TRIMMED if trims else TEXT
    turn = f"{written(before)}{{{{ {role} }}}}{written(behind_role)}{text}{written(behind)}"
    usual = f"{before}assistant{behind_role}"
    return written(start) + for_each(turn) + going_on(usual if prompt is None else prompt)


def choice(by_role: Mapping[str, Turn], trims: Collection[str] = ()) -> str:
    """What is written of one message."""
    parts = ""
    for role, (before, behind) in sorted(by_role.items(), key=lambda item: not item[0]):
        text = TRIMMED if role in trims else TEXT
        asks = f"if m.role == {quoted(role)}" if not parts else f"elif m.role == {quoted(role)}"
        parts += f"{{% {asks if role else 'else'} %}}{written(before)}{text}{written(behind)}"
    return f"{parts}{{% endif %}}"


def bracketed(
    opening: str, by_role: Mapping[str, Turn], *, later: str | None = None,
    trims: Collection[str] = (),
) -> str:  # fmt: skip
    """Turns that a message opens and the assistant's closes: system and user are in one.
    `later`: the opening of all but the first."""
    first = written(opening)
    if later is not None:
        first = f"{{% if loop.first %}}{first}{{% else %}}{written(later)}{{% endif %}}"
    opens = f"{{% if not ns.is_open %}}{first}{{% set ns.is_open = true %}}{{% endif %}}"
    closes = "{% set ns.is_open = m.role in ('system', 'user') %}"
    begin = "{% set ns = namespace(is_open=false) %}"
    return begin + for_each(opens + choice(by_role, trims) + closes)


def with_system_inside(user_turn: str, *, trims: bool = False) -> str:
    """Texts of the system are collected; `user_turn` writes them as `ns.system`."""
    text = "m.content | trim" if trims else "m.content"
    keep = f"{{% set ns.system = ns.system + {text} %}}"
    turn = f"{{% if m.role == 'system' %}}{keep}{{% else %}}{user_turn}{{% endif %}}"
    return "{% set ns = namespace(system='') %}" + for_each(turn)


def for_each(turn: str) -> str:
    return f"{{% for m in messages %}}{turn}{{% endfor %}}"


def going_on(prompt: str) -> str:
    return f"{{% if add_generation_prompt %}}{written(prompt)}{{% endif %}}" if prompt else ""


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def written(text: str) -> str:
    """As an expression: line ends beside marks of blocks would be lost."""
    return f"{{{{ {quoted(text)} }}}}" if text else ""
