"""Prompt files of users: Spec-Bench's and SPEED-Bench's questions, JSON lines, plain text.

What is wrong in one is said with its line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from ..errors import ConfigError
from .record import PromptSet
from .workloads import parse_prompts

MAX_BYTES: Final = 1 << 30  # SPEED-Bench's longest prompts are 200 MB
_JSON: Final = (".jsonl", ".ndjson", ".json")
_PARQUET: Final = b"PAR1"
# What SPEED-Bench ships where a text may not be passed on; its own script puts the texts in.
_UNFETCHED: Final = "SHOULD BE FETCHED FROM THE SOURCE"


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
    text = _decoded(data, path)
    start = text.lstrip()[:1]
    is_json = path.suffix.lower() in _JSON or start == "{"
    if is_json and start == "[":
        raise ConfigError(
            f"{path} is one JSON array; one object per line is expected (jq -c '.[]' makes that)"
        )
    return parse_prompts(_plain(text, path) if is_json else text, path.name, is_jsonl=is_json)


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path.name}, line {number}: not UTF-8 ({error.reason})") from None


def _plain(text: str, path: Path) -> str:
    """Line by line under our own names; lines without a question pass as they are."""
    seen: dict[str, int] = {}
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        where = f"{path.name}, line {number}"
        record = _object(line)
        if record is not None:
            _check_name(record, seen, number, where)
            if "question_id" in record:
                line = json.dumps(_question(record, where))
        lines.append(line)
    return "\n".join(lines)


def _object(line: str) -> dict[str, Any] | None:
    """None for what the next reader complains of."""
    try:
        value = json.loads(line) if line.strip() else None
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _check_name(record: dict[str, Any], seen: dict[str, int], number: int, where: str) -> None:
    key = "question_id" if "question_id" in record else "id"
    if key not in record:
        return
    name = str(record[key])
    if name in seen:
        raise ConfigError(f"{where}: {key} {name!r} is that of line {seen[name]}, too")
    seen[name] = number


def _question(record: dict[str, Any], where: str) -> dict[str, Any]:
    name, category, turns = (record.get(key) for key in ("question_id", "category", "turns"))
    if isinstance(name, bool) or not isinstance(name, int | str) or name == "":
        raise ConfigError(f"{where}: question_id must be a number or a text, got {name!r}")
    if not isinstance(category, str) or not category:
        raise ConfigError(f"{where}: category must be a text, got {category!r}")
    if not isinstance(turns, list) or not turns:
        raise ConfigError(f"{where}: turns must be a list of texts, and not empty")
    for turn in turns:
        if not isinstance(turn, str) or not turn:
            raise ConfigError(f"{where}: turns must be texts that are not empty, got {turn!r:.40}")
        if _UNFETCHED in turn:
            raise ConfigError(
                f"{where}: a placeholder stands for the text; SPEED-Bench's prepare_data.py puts "
                "the texts in"
            )
    kept: dict[str, Any] = {key: record[key] for key in ("system", "max_tokens") if key in record}
    return {"id": str(name), "category": category, "turns": turns, **kept}
