"""Chat templates: the Jinja text in a GGUF that turns messages into a prompt.

Rendering happens in another process (`template_client`): a template is untrusted code.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ..errors import ConfigError, TemplateError
from .harmony import fit_messages, fit_tools, wants_thinking, without_return
from .template_client import WORKER
from .vocabulary import find_text

if TYPE_CHECKING:
    from .tokenizer import Tokenizer

_KEY = "tokenizer.chat_template"
_MAX_SOURCE_CHARS = 1 << 20  # the longest in use have some 20,000

_THROUGH_PARTS = re.compile(r"""\bfor \w+ in \w+(?:\.content\b|\[['"]content['"]\])""")
_KNOWS_TEXT = re.compile(r"\bis (?:not )?(?:string|iterable|sequence)\b")

# Names that extra arguments may not have: they decide what is rendered, or belong to the
# environment.
_RESERVED = frozenset(
    (
        "messages", "tools", "documents", "switches", "tokenize", "add_generation_prompt",
        "bos_token", "eos_token", "chat_template", "continue_final_message", "return_dict",
        "return_tensors", "self", "range", "dict", "namespace", "raise_exception",
        "strftime_now", "loop", "varargs", "kwargs", "caller",
    )
)  # fmt: skip


class ChatTemplate(Struct, frozen=True):
    source: str

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        bos_token: str = "",
        eos_token: str = "",
        switches: Mapping[str, object] | None = None,
        **kwargs: object,
    ) -> str:
        """`kwargs` are the template's own switches, `enable_thinking` for one. Those of a request
        come in `switches`, where a name like `tools` is refused instead of a clash of arguments.
        All values must be JSON values. Raises `ConfigError` for arguments, `TemplateError`
        for the rest."""
        if len(self.source) > _MAX_SOURCE_CHARS:
            raise TemplateError(
                f"chat template: {len(self.source)} characters, at most {_MAX_SOURCE_CHARS} can be"
            )
        kwargs = {**kwargs, **(switches or {})}
        _check_kwargs(kwargs)
        if not isinstance(add_generation_prompt, bool):
            raise ConfigError("add_generation_prompt must be true or false")
        messages = _objects(messages, "messages")
        tools = None if tools is None else _objects(tools, "tools")
        is_harmony = wants_thinking(self.source)
        if is_harmony:
            messages, tools = fit_messages(messages), fit_tools(tools)
        elif _wants_parts(self.source):
            messages = [_in_parts(message) for message in messages]
        values: dict[str, object] = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "bos_token": bos_token,
            "eos_token": eos_token,
            **_of_llama_cpp(self.source, tools),
        }
        try:
            text = WORKER.render(self.source, values | kwargs)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"cannot be given to a chat template: {error}") from None
        return without_return(text) if is_harmony else text

    def warm_up(self) -> None:
        """Start the process that renders, without waiting for it."""
        WORKER.start()


def _of_llama_cpp(source: str, tools: Sequence[Mapping[str, object]] | None) -> dict[str, object]:
    """What llama.cpp gives to templates that name it: thinking, which is on unless a switch says
    no, Llama 3's date, and firefunction's time and tools."""
    made: dict[str, Callable[[], object]] = {
        "enable_thinking": lambda: True,
        "date_string": lambda: time.strftime("%d %b %Y"),
        "datetime": lambda: time.strftime("%b %d %Y %H:%M:%S GMT", time.gmtime()),
        "functions": lambda: json.dumps(tools or [], indent=2),
    }
    return {name: make() for name, make in made.items() if name in source}


def load_chat_template(
    metadata: Mapping[str, object], name: str | None = None
) -> ChatTemplate | None:
    """The file's template, or the one it keeps under `name` (`tool_use`, `rag`); None if absent."""
    source = find_text(metadata, _KEY if name is None else f"{_KEY}.{name}")
    return None if source is None else ChatTemplate(source)


def prompt_tokens(text: str, tokenizer: Tokenizer) -> list[int]:
    """Token ids of a rendered template, with BOS in front if the model needs it."""
    tokens = tokenizer.encode(text, add_special=False)
    # Most templates write BOS themselves.
    bos = tokenizer.bos_id
    if tokenizer.add_bos and bos is not None and tokens[:1] != [bos]:
        tokens.insert(0, bos)
    return tokens


def spelling(tokenizer: Tokenizer, token: int | None) -> str:
    """As templates expect `bos_token` and `eos_token`."""
    return "" if token is None else tokenizer.token(token)


def _wants_parts(source: str) -> bool:
    """Whether a template goes through the parts of each message's content, and takes no text for
    it: such as SmolVLM's, which would show nothing of a text."""
    return bool(_THROUGH_PARTS.search(source)) and not _KNOWS_TEXT.search(source)


def _in_parts(message: Mapping[str, object]) -> dict[str, object]:
    content = message.get("content")
    if not isinstance(content, str):
        return dict(message)
    return {**message, "content": [{"type": "text", "text": content}]}


def _check_kwargs(kwargs: Mapping[str, object]) -> None:
    for name in kwargs:
        if name in _RESERVED or name.startswith("_") or not name.isidentifier():
            raise ConfigError(f"a chat template cannot be given {name[:60]!r}: it is reserved")


def _objects(values: Sequence[Mapping[str, object]], name: str) -> list[dict[str, object]]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise ConfigError(f"{name} must be a list")
    if not all(isinstance(value, Mapping) for value in values):
        raise ConfigError(f"each of {name} must be an object")
    return [dict(value) for value in values]
