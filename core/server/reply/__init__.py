"""Splits the text of a model into reasoning, content and tool calls while it comes."""

from .parser import ReplyParser
from .pieces import ARGUMENTS, CALL, CONTENT, REASONING, ReplyPiece
from .styles import CallStyle, find_call_style

__all__ = [
    "ARGUMENTS", "CALL", "CONTENT", "REASONING", "CallStyle", "ReplyParser", "ReplyPiece",
    "find_call_style",
]  # fmt: skip
