"""Text to token ids and back, chat templates.

Names are looked up on first use: importing this package loads nothing, so that the template
worker, a process that needs only jinja2, can live in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .chat_template import ChatTemplate as ChatTemplate
    from .chat_template import load_chat_template as load_chat_template
    from .stream import StreamDecoder as StreamDecoder
    from .tokenizer import Tokenizer as Tokenizer
    from .tokenizer_loading import load_tokenizer as load_tokenizer

_HOME = {
    "ChatTemplate": "chat_template",
    "load_chat_template": "chat_template",
    "load_tokenizer": "tokenizer_loading",
    "StreamDecoder": "stream",
    "Tokenizer": "tokenizer",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOME[name]}", __name__), name)
