"""The response of `/v1/responses`: items that have parts, streamed as numbered events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .answer import Answer, now
from .chat_prompt import ChatPrompt
from .parsed_request import ParsedRequest
from .reply import CALL, CONTENT, REASONING
from .reply_blocks import ReplyBlock, ReplyBlockFormat, named_event
from .response_store import new_id
from .service import Service

_ECHOED = ("instructions", "metadata", "temperature", "top_p", "tools", "tool_choice", "text",
           "reasoning", "max_output_tokens", "user", "parallel_tool_calls",
           "previous_response_id", "store")  # fmt: skip


_WHOLE: Final = "completed"


class ResponsesFormat(ReplyBlockFormat):
    def __init__(
        self, parsed: ParsedRequest, prompt: ChatPrompt, given: dict[str, Any], service: Service,
        keep: Callable[[dict[str, Any]], None],
    ) -> None:  # fmt: skip
        """`keep`: called with the response when it is complete."""
        super().__init__(parsed, prompt)
        self._tokenizer, self._keep = service.tokenizer, keep
        self._stores = service.settings.stores_responses
        self._echoed = {name: given.get(name) for name in _ECHOED}
        self._frame = {
            "id": new_id(service.settings.replica),
            "object": "response",
            "created_at": now(),
            "model": parsed.model,
        }
        self._n_events = 0

    def opening(self, answer: Answer) -> bytes:
        started = self._response("in_progress", [], None)
        return self._event("response.created", response=started) + self._event(
            "response.in_progress", response=started
        )

    def open_block(self, block: ReplyBlock) -> bytes:
        item = _item(block, "in_progress")
        if block.kind != CALL:
            item["content"] = []
        written = self._event("response.output_item.added", output_index=block.place, item=item)
        if block.kind == CALL:
            return written
        part = _part(block) | {"text": ""}
        return written + self._in_part("response.content_part.added", block, part=part)

    def fill_block(self, block: ReplyBlock, text: str) -> bytes:
        if block.kind == CALL:
            return self._in_item("response.function_call_arguments.delta", block, delta=text)
        if block.kind == REASONING:
            return self._in_part("response.reasoning_text.delta", block, delta=text)
        return self._in_part("response.output_text.delta", block, delta=text, logprobs=[])

    def close_block(self, block: ReplyBlock) -> bytes:
        if block.kind == CALL:
            done = self._in_item(
                "response.function_call_arguments.done", block,
                name=block.name, arguments=_arguments(block, self._status(block)),
            )  # fmt: skip
        else:
            kind = "reasoning_text" if block.kind == REASONING else "output_text"
            more: dict[str, Any] = {"logprobs": []} if block.kind == CONTENT else {}
            done = self._in_part(f"response.{kind}.done", block, text=block.text, **more)
            done += self._in_part("response.content_part.done", block, part=_part(block))
        item = _item(block, self._status(block))
        return done + self._event("response.output_item.done", output_index=block.place, item=item)

    def closing(self, answers: list[Answer]) -> bytes:
        result = self.result(answers[0])
        return self._event(f"response.{result['status']}", response=result)

    def result(self, answer: Answer) -> dict[str, Any]:
        items = [_item(block, self._status(block)) for block in self.blocks]
        status = "incomplete" if self.is_cut else _WHOLE
        response = self._response(status, items, answer)
        self._keep(response)
        return response

    def _status(self, block: ReplyBlock) -> str:
        is_last = self.is_cut and block is self.blocks[-1]
        is_whole = block.kind == CALL and block.arguments is not None
        return "incomplete" if is_last and not is_whole else _WHOLE

    def _response(
        self, status: str, output: list[dict[str, Any]], answer: Answer | None
    ) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            **self._frame,
            "status": status,
            "error": None,
            "incomplete_details": cut,
            "output": output,
            **self._echoed,
            "store": self._stores and self._echoed["store"] is not False,
            "parallel_tool_calls": self._echoed["parallel_tool_calls"] is not False,
            "tools": self._echoed["tools"] or [],
            "tool_choice": self._echoed["tool_choice"] or "auto",
            "usage": None if answer is None else self._usage(answer),
            **self.warnings,
        }

    def _usage(self, answer: Answer) -> dict[str, Any]:
        usage = answer.usage()
        thoughts = "".join(block.text for block in self.blocks if block.kind == REASONING)
        details = usage["completion_tokens_details"] | {
            "reasoning_tokens": len(self._tokenizer.encode(thoughts, add_special=False))
        }
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": details,
            "total_tokens": usage["total_tokens"],
        }

    def _in_item(self, kind: str, block: ReplyBlock, **more: Any) -> bytes:
        return self._event(kind, item_id=_id(block), output_index=block.place, **more)

    def _in_part(self, kind: str, block: ReplyBlock, **more: Any) -> bytes:
        return self._in_item(kind, block, content_index=0, **more)

    def _event(self, kind: str, **more: Any) -> bytes:
        self._n_events += 1
        return named_event(kind, {"sequence_number": self._n_events - 1, **more})


def _id(block: ReplyBlock) -> str:
    prefix = {CONTENT: "msg_", REASONING: "rs_", CALL: "fc_"}[block.kind]
    return prefix + block.key.partition("_")[2]


def _arguments(block: ReplyBlock, status: str) -> str:
    return block.text or ("{}" if status == _WHOLE else "")


def _part(block: ReplyBlock) -> dict[str, Any]:
    if block.kind == REASONING:
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}


def _item(block: ReplyBlock, status: str) -> dict[str, Any]:
    written: dict[str, Any] = {"id": _id(block), "status": status}
    if block.kind == CALL:
        written |= {"type": "function_call", "call_id": block.key, "name": block.name}
        return written | {"arguments": _arguments(block, status)}
    if block.kind == REASONING:
        return written | {"type": "reasoning", "summary": [], "content": [_part(block)]}
    return written | {"type": "message", "role": "assistant", "content": [_part(block)]}
