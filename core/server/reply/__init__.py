"""What a model's text says: thoughts, content and calls of tools, told apart while it comes."""

from .parser import ReplyParser
from .pieces import ARGUMENTS, CALL, CONTENT, REASONING, Piece
from .styles import CallStyle, find_call_style

__all__ = [
    "ARGUMENTS", "CALL", "CONTENT", "REASONING", "CallStyle", "Piece", "ReplyParser",
    "find_call_style",
]  # fmt: skip
