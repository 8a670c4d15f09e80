"""Replies of gpt-oss on the terminal, and in the next prompt."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable

import pytest
from support.harmony_replies import FINAL, JSON, PREAMBLE, SAID, THOUGHT, TO
from support.harmony_template import HARMONY

from nextn.cli.shown_reply import ShownReply, message_of, shown_reply
from nextn.core.tokenizer import ChatTemplate

Run = Callable[..., subprocess.CompletedProcess[str]]
TEMPLATE = ChatTemplate(HARMONY)
SHOWN = [
    (f"{THOUGHT}Hm.<|end|>{SAID}{FINAL}Yes.", "<think>\nHm.\n</think>\n\nYes."),
    (f"{THOUGHT}One.<|end|>{SAID}{THOUGHT}Two.<|end|>{SAID}{FINAL}Three.",
     "<think>\nOne.\n\nTwo.\n</think>\n\nThree."),
    (f"{FINAL}Yes.\n", "Yes.\n"),
    (f"{PREAMBLE}I look.<|end|>{SAID}{THOUGHT}Hm.<|end|>{SAID}{FINAL}Yes.",
     "I look.\n\n<think>\nHm.\n</think>\n\nYes."),
    (f"{THOUGHT}I was", "<think>\nI was\n</think>"),
    (f'{PREAMBLE}I look.<|end|>{SAID}{TO}now{JSON}{{"a": 1}}', 'I look.\n\nnow {"a": 1}'),
    ("no channel", "no channel"),
    ("", ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), SHOWN)
def test_thoughts_are_shown_between_marks(text: str, wanted: str) -> None:
    shown = ShownReply()
    for size in (1, 3, 1000):  # and it can be used again
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert "".join(map(shown.feed, pieces)) + shown.end() == wanted


def test_other_replies_are_shown_as_they_are() -> None:
    plain = ChatTemplate("{{ messages }}<think>")
    assert shown_reply(plain) is None
    assert message_of(plain, f"{THOUGHT}x")["content"] == f"{THOUGHT}x"
    assert shown_reply(TEMPLATE) is not None


def test_what_was_said_is_a_message_for_the_template() -> None:
    text = f"{PREAMBLE}I look.<|end|>{SAID}{THOUGHT}Hm.<|end|>{SAID}{FINAL}Yes."
    message = message_of(TEMPLATE, text)
    assert message == {"role": "assistant", "content": "I look.\n\nYes.", "thinking": "Hm."}
    ask = {"role": "user", "content": "And?"}
    prompt = TEMPLATE.render([ask, message, ask])
    assert prompt.endswith(
        f"{SAID}{FINAL}I look.\n\nYes.<|end|><|start|>user<|message|>And?<|end|>{SAID}"
    )


def test_an_answer_on_stdout(spec: Run) -> None:
    pieces = ["<|channel|>", "analysis", "<|message|>", "Hm.", "<|end|>", "<|start|>", "assistant",
              "<|channel|>", "final", "<|message|>", "Yes."]  # fmt: skip
    script = {"pieces": pieces, "template": HARMONY}
    flags = ("generate", "-m", "m.gguf", "--chat", "hi")
    assert spec(*flags, script=script).stdout == "<think>\nHm.\n</think>\n\nYes."
    done = json.loads(spec(*flags, "--json", script=script).stdout)
    assert done["text"] == "".join(pieces)
    raw = spec("generate", "-m", "m.gguf", "-p", "hi", script=script).stdout
    assert raw.endswith("".join(pieces))
