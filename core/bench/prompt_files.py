"""Prompt files of users: Spec-Bench's and SPEED-Bench's questions, JSON lines, plain text.

An error in a file names its line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from .record import Prompt, PromptSet

MAX_BYTES: Final = 1 << 30  # SPEED-Bench's longest prompts are 200 MB
N_TOKENS: Final = 128  # of an answer, where a file has no length
_JSON: Final = (".jsonl", ".ndjson", ".json")
_PARQUET: Final = b"PAR1"
# What SPEED-Bench ships where a text may not be passed on; its own script puts the texts in.
_UNFETCHED: Final = "SHOULD BE FETCHED FROM THE SOURCE"
_TEXTS: Final = ("text", "prompt", "content")
_TURNS: Final = ("turns", "messages")
_LENGTHS: Final = ("max_tokens", "n_predict")
_QUESTION: Final = ("category", "turns", "system", "max_tokens")


def read_prompt_file(path: Path) -> PromptSet:
    """JSONL by its suffix or by its first character, text otherwise."""
    if path.stat().st_size > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES >> 30} GiB: no file of prompts")
    data = path.read_bytes()
    if data.startswith(_PARQUET):
        raise ConfigError(
            f"{path} is Parquet; one JSON object per line is expected, as pandas writes it: "
            "read_parquet(FILE).to_json(OUT, orient='records', lines=True)"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path.name}, line {number}: not UTF-8 ({error.reason})") from None
    start = text.lstrip()[:1]
    is_json = path.suffix.lower() in _JSON or start == "{"
    if is_json and start == "[":
        raise ConfigError(
            f"{path} is one JSON array; one object per line is expected (jq -c '.[]' makes that)"
        )
    return parse_prompts(text, path.name, is_jsonl=is_json)


def parse_prompts(text: str, name: str, *, is_jsonl: bool) -> PromptSet:
    """As text: one prompt per block, blocks parted by lines of `---`. As JSONL: one object per
    line with `text` or `turns`, and perhaps `id`, `category`, `max_tokens`, `system`."""
    prompts = tuple(_of_jsonl(text, name) if is_jsonl else _of_text(text))
    if not prompts:
        raise ConfigError(f"{name} holds no prompt")
    return PromptSet(name, prompts)


def _of_text(text: str) -> Iterator[Prompt]:
    blocks = [""]
    for line in text.splitlines(keepends=True):
        if line.rstrip() == "---":
            blocks.append("")
        else:
            blocks[-1] += line
    for i, block in enumerate((block for block in blocks if block.strip()), 1):
        yield Prompt(f"prompt-{i}", "prompts", text=block.strip("\n"), max_tokens=N_TOKENS)


def _of_jsonl(text: str, name: str) -> Iterator[Prompt]:
    line_of: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(line, number, line_of)
        except ConfigError as error:
            raise ConfigError(f"{name}, line {number}: {error}") from None
        yield prompt


def _prompt(line: str, number: int, line_of: dict[str, int]) -> Prompt:
    value = _object(line)
    key = "question_id" if "question_id" in value else "id"
    id = str(value.get(key, f"prompt-{number}"))
    first = line_of.setdefault(id, number)
    if first != number:
        raise ConfigError(f"{key} {id!r} is that of line {first}, too")
    if key == "question_id":
        _check_question(value)
        value = {name: value[name] for name in _QUESTION if name in value}
    text: Any = _first(value, _TEXTS, "")
    length: Any = _first(value, _LENGTHS, N_TOKENS)
    given_system, turns = _turns(_first(value, _TURNS, ()))
    system: Any = value.get("system", given_system)
    if not isinstance(text, str) or not isinstance(system, str):
        raise ConfigError("text and system must be text")
    if isinstance(length, bool) or not isinstance(length, int):
        raise ConfigError(f"max_tokens must be a whole number, got {length!r}")
    category = str(value.get("category", "prompts"))
    return Prompt(id, category, text=text, turns=turns, system=system, max_tokens=length)


def _object(line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"not JSON: {error}") from None
    if isinstance(value, str):
        return {"text": value}
    if not isinstance(value, dict):
        raise ConfigError("an object is expected, with text or turns")
    return value


def _check_question(record: dict[str, Any]) -> None:
    """Check a record of Spec-Bench or SPEED-Bench, whose fields are fixed."""
    id, category, turns = (record.get(key) for key in ("question_id", "category", "turns"))
    if isinstance(id, bool) or not isinstance(id, int | str) or id == "":
        raise ConfigError(f"question_id must be a number or a text, got {id!r}")
    if not isinstance(category, str) or not category:
        raise ConfigError(f"category must be a text, got {category!r}")
    if not isinstance(turns, list) or not turns:
        raise ConfigError("turns must be a list of texts, and not empty")
    for turn in turns:
        if not isinstance(turn, str) or not turn:
            raise ConfigError(f"turns must be texts that are not empty, got {turn!r:.40}")
        if _UNFETCHED in turn:
            raise ConfigError(
                "a placeholder stands for the text; SPEED-Bench's prepare_data.py puts the texts in"
            )


def _first(value: dict[str, Any], names: tuple[str, ...], default: Any) -> Any:
    return next((value[name] for name in names if value.get(name) is not None), default)


def _turns(given: Any) -> tuple[str, tuple[str, ...]]:
    """Strings, or messages in OpenAI's form: (the system's text, the user's texts)."""
    wrong = ConfigError("turns must be a list of texts, or of messages with role, content")
    if not isinstance(given, list | tuple):
        raise wrong
    system, turns = "", list[str]()
    for each in given:
        role: Any = "user"
        content: Any = each
        if isinstance(each, dict):
            role, content = each.get("role"), each.get("content")
        if not isinstance(content, str):
            raise wrong
        if role == "system":
            system = content
        elif role == "user":
            turns.append(content)
        elif role != "assistant":  # the file's answers are written anew
            raise wrong
    return system, tuple(turns)
