"""Forms: fixed text around JSON that follows a schema, one of several, with thoughts before it.

What a chat that must call a tool, or think before it answers in JSON, needs of a grammar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from ..errors import ConfigError

MAX_FORMS: Final = 128
PLACE: Final = "x-place"  # in a schema: its name, for notes and errors


def write_forms(
    forms: Sequence[tuple[str, Any, str]],
    *,
    thought_end: str = "",
    thought_starts: Sequence[str] = (),
    behind_thought: str = "",
) -> str:
    """The form of `GenerateParams.forms`: text before, schema and text behind of each.

    With `thought_end`, any text has to come first that this ends. With `thought_starts` too, any
    number of such texts may come first, even none: each starts with one of these, and
    `behind_thought` follows it.
    """
    if not 1 <= len(forms) <= MAX_FORMS:
        raise ConfigError(f"there may be 1 to {MAX_FORMS} forms, got {len(forms)}")
    thoughts = {"end": thought_end, "starts": list(thought_starts), "behind": behind_thought}
    return json.dumps({"thoughts": thoughts, "forms": [list(form) for form in forms]})


def lark_of_forms(given: dict[str, Any], blanks: str) -> str:
    """`given`: what `write_forms` made; `blanks`: what may stand between the parts of JSON."""
    lines = ['%llguidance {"no_forcing": true}']
    names = [f"form_{i}" for i in range(len(given["forms"]))]
    choice = " | ".join(names)
    thoughts = given["thoughts"]
    if starts := thoughts["starts"]:
        opened = f"({' | '.join(map(_quoted, starts))}) thought {_quoted(thoughts['behind'])}"
        lines += [f"start: opened* ({choice})", f"opened: {opened}"]
    else:
        lines.append(f"start: thought ({choice})" if thoughts["end"] else f"start: {choice}")
    if end := thoughts["end"]:
        lines.append(f"thought[suffix={_quoted(end)}]: /(?s:.*)/")
    for i, (before, schema, after) in enumerate(given["forms"]):
        parts = [_quoted(before)] * bool(before) + [f"json_{i}"] + [_quoted(after)] * bool(after)
        lines.append(f"form_{i}: {' '.join(parts)}")
        if isinstance(schema, dict):
            schema = schema | {"x-guidance": {"whitespace_pattern": blanks, "lenient": True}}
        lines.append(f"json_{i}: %json {json.dumps(schema)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
