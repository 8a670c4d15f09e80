"""Writes `tests/data/harmony.json`: what others make of the conversations and replies here.

    PYTHONPATH=tests/lib python -m support.harmony_record TEMPLATE

TEMPLATE is gpt-oss's own chat template; replies are cut and read by `openai-harmony`, which loads
its vocabulary from $TIKTOKEN_ENCODINGS_BASE or from the net.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .harmony_cases import CONVERSATIONS, Conversation
from .harmony_replies import REPLIES

DATA = Path(__file__).parents[2] / "data" / "harmony.json"
DATE = "2025-06-28"
_MARK = re.compile(r"(<\|\w+\|>)")
_ORDINARY = re.compile(r"\{(start|message|channel|end|call)\}")


def environment() -> ImmutableSandboxedEnvironment:
    """As transformers sets it up."""

    def fail(message: str) -> NoReturn:
        raise TemplateError(message)

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    made.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    made.globals |= {
        "raise_exception": fail,
        "strftime_now": datetime.fromisoformat(DATE).strftime,
    }
    return made


def rendered(conversation: Conversation, template: str) -> str:
    body = conversation.body
    tools: Any = json.loads(json.dumps(body.get("tools")))
    for tool in tools or []:  # what the template cannot do without
        function = tool["function"]
        function.setdefault("description", "")
        for schema in function.get("parameters", {}).get("properties", {}).values():
            if "enum" in schema and "default" in schema:
                schema["default"] = str(schema["default"])
    text = environment().from_string(template).render(
        messages=conversation.ideal, tools=tools,
        add_generation_prompt=body.get("add_generation_prompt", True), **conversation.more,
    )  # fmt: skip
    return re.sub(r"<\|return\|>$", "<|end|>", text)  # as the format wants it in prompts


def tokens_of(encoding: Any, text: str) -> list[int]:
    found: list[int] = []
    for part in filter(None, _MARK.split(text)):
        if _MARK.fullmatch(part) and encoding.is_special_token(
            encoding.encode(part, allowed_special="all")[0]
        ):
            found += encoding.encode(part, allowed_special="all")
        else:
            plain = _ORDINARY.sub(r"<|\1|>", part)
            found += encoding.encode(plain, disallowed_special=())
    return found


def pieces_of(encoding: Any, tokens: list[int]) -> list[str]:
    """The text of each token as an engine sends it: characters are whole, ends have no text."""
    ends = set(encoding.stop_tokens_for_assistant_actions())
    found, waiting = [], []
    for token in tokens:
        waiting.append(token)
        try:
            text = encoding.decode_utf8(waiting)
        except Exception:  # noqa: BLE001 - a part of a character; the package has no own error
            continue
        found.append("" if token in ends else text)
        waiting = []
    assert not waiting
    return found


def read(encoding: Any, tokens: list[int]) -> list[dict[str, str | None]]:
    harmony = import_module("openai_harmony")
    parser = harmony.StreamableParser(encoding, role=harmony.Role.ASSISTANT)
    for token in tokens:
        parser.process(token)
    found = [(each.channel, each.recipient, each.content[0].text) for each in parser.messages]
    if parser.current_channel is not None:  # cut off
        found.append((parser.current_channel, parser.current_recipient, parser.current_content))
    return [
        {"channel": channel, "recipient": _recipient(recipient), "text": text}
        for channel, recipient, text in found
    ]


def _recipient(name: str | None) -> str | None:
    """The package takes a type without a recipient before it for one."""
    return None if name is None or name.startswith("<|constrain|>") else name


def main(template: str) -> None:
    harmony = import_module("openai_harmony")
    encoding = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    prompts = {each.name: rendered(each, template) for each in CONVERSATIONS}
    replies = {}
    for name, text in REPLIES.items():
        tokens = tokens_of(encoding, text)
        replies[name] = {"pieces": pieces_of(encoding, tokens), "messages": read(encoding, tokens)}
    text = f'{{"prompts": {_lines(prompts)},\n"replies": {_lines(replies)}}}\n'
    DATA.write_text(text, encoding="utf-8")


def _lines(entries: dict[str, Any]) -> str:
    """One line an entry."""
    written = (
        f"{json.dumps(name)}: {json.dumps(entry, ensure_ascii=False)}"
        for name, entry in entries.items()
    )
    return "{\n" + ",\n".join(written) + "}"


if __name__ == "__main__":
    main(Path(sys.argv[1]).read_text(encoding="utf-8"))
