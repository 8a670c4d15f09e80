"""Chat templates render as in transformers, and take no more arguments than they should."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from nextn.core.errors import ConfigError, TemplateError
from nextn.core.tokenizer import ChatTemplate, load_chat_template

from .chat_templates import CHATML, CONVERSATIONS, QWEN3, TEMPLATES, TOOLS

QUESTION = CONVERSATIONS["one question"]


def by_transformers(source: str, messages: list[dict[str, object]], **values: object) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template([messages], chat_template=source, **values)
    text: str = rendered[0]
    return text


@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_equals_transformers(
    name: str, conversation: str, tools: list[dict[str, object]] | None, prompt: bool
) -> None:
    values: dict[str, Any] = {"tools": tools, "add_generation_prompt": prompt}
    values |= {"bos_token": "<s>", "eos_token": "</s>"}
    messages = CONVERSATIONS[conversation]
    ours = ChatTemplate(TEMPLATES[name]).render(messages, **values)
    assert ours == by_transformers(TEMPLATES[name], messages, **values)
    assert len(ours) > 20


def test_own_switches_reach_the_template() -> None:
    template = ChatTemplate(QWEN3)
    assert template.render(QUESTION, enable_thinking=False).endswith("</think>\n\n")
    assert template.render(QUESTION, enable_thinking=True).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "source",
    [
        "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x is defined }}",
        "{{ {'b': 'é<', 'a': [1, none, true]} | tojson(sort_keys=true) }}",
        "{{ [1] | tojson(separators=(',', ':'), indent=1) }}{{ 'é' | tojson(ensure_ascii=true) }}",
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
        "{{ '%s-%03d' | format('a', 7) }}{{ '%(x)s' | format(x=1) }}{{ '%s %%' % 'b' }}",
        "{{ messages[0].nothing }}|{{ nothing is defined }}|{{ none }}|{{ documents is none }}",
        "  {% if true %}\n  a\n  {% endif %}\nb\n\n",
    ],
)
def test_corners_equal_transformers(source: str) -> None:
    ours = ChatTemplate(source).render(QUESTION, add_generation_prompt=False)
    assert ours == by_transformers(source, QUESTION, add_generation_prompt=False)


def test_the_date_is_at_hand() -> None:
    now = ChatTemplate("{{ strftime_now('%Y') }}").render(QUESTION)
    assert abs(int(now) - datetime.now().year) <= 1


@pytest.mark.parametrize(
    "name",
    [
        "messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token",
        "tokenize", "chat_template", "self", "range", "namespace", "raise_exception", "_x", "a b",
    ],
)  # fmt: skip
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="reserved"):
        ChatTemplate(CHATML).render(QUESTION, switches={name: True})


def test_reserved_names_are_refused_as_keywords() -> None:
    with pytest.raises(ConfigError, match="reserved"):
        ChatTemplate(CHATML).render(QUESTION, tokenize=True)


def test_switches_of_a_request_reach_the_template() -> None:
    template = ChatTemplate("{{ level }}{{ mood }}")
    assert template.render(QUESTION, switches={"level": 3}, mood="!") == "3!"


@pytest.mark.parametrize(
    "values",
    [
        {"messages": "text"},
        {"messages": ["text"]},
        {"messages": {"role": "user"}},
        {"messages": QUESTION, "tools": ["weather"]},
        {"messages": QUESTION, "tools": 5},
        {"messages": QUESTION, "add_generation_prompt": "yes"},
        {"messages": QUESTION, "switch": object()},
        {"messages": QUESTION, "switch": {1, 2}},
        {"messages": QUESTION, "bos_token": b"<s>"},
    ],
)
def test_arguments_that_cannot_be_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ChatTemplate(CHATML).render(**values)


def test_arguments_nested_without_end_are_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ConfigError, match="cannot be given to a chat template"):
        ChatTemplate(CHATML).render([{"role": "user", "content": loop}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("a\n{{ raise_exception('no\n\x1b[31mway') }}", r"^chat template: line 2: no \?\[31mway$"),
        ("\n\n{% if %}", r"^chat template: line 3: Expected an expression"),
        ("\n{{ messages[0].x.y }}", r"line 2: .*has no attribute 'x'"),
        ("{{ 1 / 0 }}", r"line 1: ZeroDivisionError: division by zero"),
        ("{{ nothing() }}", r"line 1: 'nothing' is undefined"),
    ],
)
def test_errors_say_where(source: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        ChatTemplate(source).render(QUESTION)


def test_surrogates_and_odd_keys_go_through() -> None:
    template = ChatTemplate("{{ messages[0].content }}{{ messages[0]['a b'] }}")
    assert template.render([{"role": "user", "content": "\ud800é", "a b": "\x00"}]) == "\ud800é\x00"


def test_templates_come_from_the_metadata() -> None:
    metadata = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"}
    main, tools = load_chat_template(metadata), load_chat_template(metadata, "tool_use")
    assert main is not None
    assert tools is not None
    assert (main.source, tools.source) == ("a", "b")
    assert load_chat_template(metadata, "rag") is None
    assert load_chat_template({}) is None


SMOLVLM = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}: "
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def test_a_template_that_wants_parts_of_a_message_gets_them() -> None:
    messages = [{"role": "user", "content": "What is <image>?"}]
    want = "<|im_start|>User: What is <image>?<end_of_utterance>\nAssistant:"
    assert ChatTemplate(SMOLVLM).render(messages) == want
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is <image>?"}]}]
    assert ChatTemplate(SMOLVLM).render(parts) == want
    knows_text = SMOLVLM.replace(
        "{% for line in", "{% if message['content'] is string %}{{ message['content'] }}"
        "{% else %}{% for line in", 1,
    ).replace("{% endif %}{% endfor %}<", "{% endif %}{% endfor %}{% endif %}<", 1)  # fmt: skip
    assert ChatTemplate(knows_text).render(messages) == want
