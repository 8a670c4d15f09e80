"""Control tokens that are shown all the same: marks of thoughts and of calls, which readers of a
reply need. Templates write them, and models write them where they think and call.
"""

from __future__ import annotations

from typing import Final

_BAR, _SPACE = "\uff5c", "\u2581"  # as DeepSeek spells its tokens
_DEEPSEEK: Final = (
    "tool calls begin", "tool calls end", "tool call begin", "tool call end", "tool sep",
)  # fmt: skip
REPLY_MARKS: Final = (
    "<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>",
    "<|START_THINKING|>", "<|END_THINKING|>", "<|channel>", "<channel|>",
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "<seed:tool_call>", "</seed:tool_call>",
    "<|tool_call|>", "<|START_ACTION|>", "<|END_ACTION|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    "<|tool_call>", "<tool_call|>", '<|"|>',
    *(f"<{_BAR}{name.replace(' ', _SPACE)}{_BAR}>" for name in _DEEPSEEK),
)  # fmt: skip
