"""`FirstCall`: when the first call of a reply is complete, which with `parallel_tool_calls: false`
is its end."""

from __future__ import annotations

from .answer import Answer
from .chat_prompt import ChatPrompt
from .parsed_request import ParsedRequest
from .reply import HarmonyParser, ReplyParser


class FirstCall:
    """Reads the texts of one request beside its format, which may read them only at the end."""

    def __init__(
        self, parsed: ParsedRequest, prompt: ChatPrompt, *, splits_thoughts: bool = True
    ) -> None:
        self._prompt, self._splits_thoughts = prompt, splits_thoughts
        self._is_wanted = prompt.tools.is_offered and prompt.tools.is_single
        parsed.is_followed |= self._is_wanted
        self._parsers: dict[int, ReplyParser | HarmonyParser] = {}

    def is_complete(self, answer: Answer, text: str) -> bool:
        """Whether it is so with this new text, and was not before."""
        if not self._is_wanted:
            return False
        parser = self._parsers.get(answer.place)
        if parser is None:
            parser = self._prompt.parser(splits_thoughts=self._splits_thoughts)
            self._parsers[answer.place] = parser
        was_full = parser.is_full
        parser.feed(text)
        return parser.is_full and not was_full
