"""Built-in chat templates: what they write, and that llama.cpp writes the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.llama_cpp import LlamaCpp
from support.tiny_models import build_tiny

from nextn.core.tokenizer import ChatTemplate
from nextn.core.tokenizer.built_in_templates import BUILT_IN

MESSAGES = [
    {"role": "system", "content": "Be brief.\n"},
    {"role": "user", "content": " Who?"},
    {"role": "assistant", "content": "\nYou.\n"},
    {"role": "tool", "content": "{}"},
    {"role": "user", "content": "Me\n\nthen"},
]
WITHOUT_SYSTEM = [
    {"role": "user", "content": "  One \n"},
    {"role": "assistant", "content": " two\n"},
    {"role": "system", "content": " late "},
    {"role": "user", "content": "three"},
    {"role": "assistant_tool_call", "content": "{}"},
    {"role": "user", "content": "four"},
]
END = "<\uff5cend\u2581of\u2581sentence\uff5c>"
USER, ASSISTANT = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"
WRITTEN = {
    "gemma": "<start_of_turn>user\nBe brief.\n\nWho?<end_of_turn>\n<start_of_turn>model\nYou."
    "<end_of_turn>\n<start_of_turn>tool\n{}<end_of_turn>\n<start_of_turn>user\nMe\n\nthen"
    "<end_of_turn>\n<start_of_turn>model\n",
    "deepseek3": f"Be brief.\n\n\n{USER} Who?{ASSISTANT}\nYou.\n{END}{USER}Me\n\nthen{ASSISTANT}",
    "chatglm4": "[gMASK]<sop><|system|>\nBe brief.\n<|user|>\n Who?<|assistant|>\n\nYou.\n"
    "<|tool|>\n{}<|user|>\nMe\n\nthen<|assistant|>\n",
    "kimi-k2": "<|im_system|>system<|im_middle|>Be brief.\n<|im_end|><|im_user|>user<|im_middle|>"
    " Who?<|im_end|><|im_assistant|>assistant<|im_middle|>\nYou.\n<|im_end|><|im_system|>tool"
    "<|im_middle|>{}<|im_end|><|im_user|>user<|im_middle|>Me\n\nthen<|im_end|><|im_assistant|>"
    "assistant<|im_middle|>",
    "exaone-moe": "<|system|>\nBe brief.<|endofturn|>\n<|user|>\nWho?<|endofturn|>\n<|assistant|>\n"
    "You.<|endofturn|>\n<|tool|>\n{}<|endofturn|>\n<|user|>\nMe\n\nthen<|endofturn|>\n"
    "<|assistant|>\n",
    "exaone3": "[|system|]Be brief.[|endofturn|]\n[|user|]Who?\n[|assistant|]You.[|endofturn|]\n"
    "[|user|]Me\n\nthen\n[|assistant|]",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written(name: str) -> None:
    assert ChatTemplate(BUILT_IN[name]).render(MESSAGES) == WRITTEN[name]


@pytest.mark.peer
@pytest.mark.parametrize("name", BUILT_IN)
def test_llama_cpp_writes_the_same(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = build_tiny("qwen2", tmp_path).path
    with capfd.disabled(), LlamaCpp(path, chat_template=name) as peer:
        for messages in (MESSAGES, WITHOUT_SYSTEM, MESSAGES[1:2]):
            written = peer.apply_template(messages)
            assert ChatTemplate(BUILT_IN[name]).render(messages) == written
