"""The tokenizer of a file, and what its chat template can do: found out by using it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ...core.errors import NextnError
from ...core.gguf.metadata import Metadata
from ...core.tokenizer import Tokenizer
from ...core.tokenizer.chat_template import ChatTemplate
from .verdict import FileReport, Subject, TemplateFacts, TokenizerFacts

_KEY: Final = "tokenizer.chat_template"
_EOS: Final = "tokenizer.ggml.eos_token_id"
_BOS: Final = "tokenizer.ggml.bos_token_id"
_ADD_BOS: Final = "tokenizer.ggml.add_bos_token"
_TOOL: Final = "probe_of_tools"
_TOOLS: Final = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "Does nothing.",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "string", "description": "Anything."}},
                "required": ["x"],
            },
        },
    }
]
_USER: Final = [{"role": "user", "content": "hello"}]
_LAST: Final = "probe of the last message"
_TWO_TURNS: Final = [
    *_USER, {"role": "assistant", "content": "hi"}, {"role": "user", "content": _LAST},
]  # fmt: skip
_SYSTEM: Final = [{"role": "system", "content": "probe-of-system"}, *_USER]
_SWITCHES: Final[tuple[tuple[str, object, object], ...]] = (
    ("enable_thinking", False, True),
    ("thinking", False, True),
    ("reasoning_effort", "low", "high"),
)
_MARKS: Final = ("<think>", "[THINK]", "<seed:think>", "<|START_THINKING|>", "reasoning_content")


def tokenizer_facts(metadata: Metadata, report: FileReport) -> TokenizerFacts | None:
    if "tokenizer.ggml.model" not in metadata:
        return None
    from ...core.tokenizer import load_tokenizer

    try:
        tokenizer = load_tokenizer(metadata)
    except NextnError as error:
        if any(finding.rule == "token-ids" for finding in report.findings):
            return None
        report.add("tokenizer", Subject.MODEL, f"the tokenizer cannot be used: {error}")
        return None
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    _check_special_tokens(metadata, tokenizer, report)
    return TokenizerFacts(
        model=tokenizer.model,
        pre=str(metadata.get("tokenizer.ggml.pre", "")),
        size=tokenizer.n_vocab,
        bos=tokenizer.tokens[bos] if bos is not None and tokenizer.add_bos else None,
        eos=None if eos is None else tokenizer.tokens[eos],
    )


def _check_special_tokens(metadata: Metadata, tokenizer: Tokenizer, report: FileReport) -> None:
    """Ids that a file leaves out are guessed by readers, or are none."""
    if _EOS not in metadata:
        text = f"{_EOS} is missing"
        if not tokenizer.eog_ids:
            text += ": no token ends a text"
        report.add("special-tokens", Subject.MODEL, text, "convert the tokenizer again")
    if _BOS not in metadata and metadata.get(_ADD_BOS) is True:
        text = f"{_BOS} is missing, although {_ADD_BOS} is true"
        report.add("special-tokens", Subject.MODEL, text, "convert the tokenizer again")


def template_facts(metadata: Metadata) -> TemplateFacts | None:
    names = sorted(key.removeprefix(f"{_KEY}.") for key in metadata if key.startswith(f"{_KEY}."))
    source = metadata.get(_KEY)
    if not isinstance(source, str):
        return TemplateFacts(0, names=tuple(names)) if names else None
    return describe_template(source, tuple(names))


def check_template(report: FileReport) -> None:
    """What is wrong with it, if there is one."""
    if (found := report.template) is not None and found.error:
        report.add(found.fault, Subject.CHAT, found.error)


def describe_template(source: str, names: tuple[str, ...] = ()) -> TemplateFacts:
    template = ChatTemplate(source)
    size = len(source)
    try:
        plain = _render(template, _USER)
    except NextnError as error:
        text = f"the chat template ({_KEY}) fails: {error}"
        return TemplateFacts(size, names=names, error=text, fault="template")
    if (wrong := _of_two_turns(template)) is not None:
        return TemplateFacts(size, names=names, error=wrong.text, fault=wrong.rule)
    return TemplateFacts(
        size,
        tools=_TOOL in _tried(template, _USER, tools=_TOOLS),
        system="probe-of-system" in _tried(template, _SYSTEM),
        thinking=_thinking(template, source, plain),
        names=names,
    )


class _Wrong(NamedTuple):
    rule: str
    text: str


def _of_two_turns(template: ChatTemplate) -> _Wrong | None:
    """Whatever else a template does, the last message is in the prompt."""
    try:
        text = _render(template, _TWO_TURNS)
    except NextnError as error:
        return _Wrong("template-turns", f"the chat template ({_KEY}) fails at two turns: {error}")
    if _LAST not in text:
        return _Wrong("template-message", f"the chat template ({_KEY}) loses the last message")
    return None


def _thinking(template: ChatTemplate, source: str, plain: str) -> str:
    for name, off, on in _SWITCHES:
        if name in source and _tried(template, _USER, **{name: off}) != _tried(
            template, _USER, **{name: on}
        ):
            return name
    return "always" if any(mark in plain or mark in source for mark in _MARKS) else ""


def _tried(template: ChatTemplate, messages: Any, **values: Any) -> str:
    try:
        return _render(template, messages, **values)
    except NextnError:
        return ""


def _render(template: ChatTemplate, messages: Any, **values: Any) -> str:
    return template.render(messages, bos_token="<s>", eos_token="</s>", **values)
