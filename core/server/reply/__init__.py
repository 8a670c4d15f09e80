"""Splits the text of a model into reasoning, content and tool calls while it comes."""

from .answer_marks import find_answer_marks
from .harmony_reply import HarmonyParser
from .parser import ReplyParser
from .pieces import ARGUMENTS, CALL, CONTENT, REASONING, ReplyPiece
from .styles import CallStyle, find_call_style

__all__ = [
    "ARGUMENTS", "CALL", "CONTENT", "REASONING", "CallStyle", "HarmonyParser", "ReplyParser",
    "ReplyPiece", "find_answer_marks", "find_call_style",
]  # fmt: skip
