"""Fields of other servers' APIs that would change the text and have no equal here. Each is an
error that says what to use instead, unless its value asks for nothing."""

from __future__ import annotations

from typing import Any, Final

from .request_bodies import (
    Body,
    CompletionBody,
    EmbeddingBody,
    GenerationBody,
    NativeBody,
    OllamaEmbedBody,
    RerankBody,
    SharedBody,
)

_ONE_TEXT: Final = "n and a seed give several texts, of which the client picks"
# What to use instead, and the values that ask for nothing, besides null and what is empty.
_REFUSED: Final[dict[str, tuple[str, tuple[object, ...]]]] = {
    "use_beam_search": (_ONE_TEXT, ()),
    "length_penalty": (_ONE_TEXT, (1,)),
    "early_stopping": (_ONE_TEXT, ()),
    "allowed_token_ids": ("guided_choice and grammar say what may be written", ()),
    "bad_words": ('logit_bias bans the tokens of a text: [["text", false]]', ()),
    "bad_words_ids": ("logit_bias bans tokens: [[15043, false]]", ()),
    "logits_processors": ("logit_bias and grammar change what is written", ()),
    "vllm_xargs": ("speculative and samplers set what this server knows", ()),
    "include_stop_str_in_output": ("the client adds the stop string, stopping_word", ()),
    "prompt_logprobs": ("spec convert measure reads texts", (-1,)),
    "truncate_prompt_tokens": ("/tokenize gives token ids, which prompt takes", (-1,)),
    "guided_whitespace_pattern": ("a grammar says where blanks may be", ()),
    "structural_tag": ("tools and tool_choice, or a grammar, say what is written", ()),
    "lora_path": ("--lora loads adapters, and the field lora chooses among them", ()),
    "chat_template": ("--chat-template sets it for all requests", ()),
    "documents": ("chat_template_kwargs sets variables of the template", ()),
    "mm_processor_kwargs": ("--image-max-tokens limits images", ()),
    "image_data": ("multimodal_data of a prompt, or the chat's image_url, takes images", ()),
    "grammar_lazy": ("tools and tool_choice restrict calls alone", ()),
    "grammar_triggers": ("tools and tool_choice restrict calls alone", ()),
    "functions": ("tools takes the same", ()),
    "function_call": ("tool_choice takes the same", ("auto", "none")),
    "audio": ("texts alone are written", ()),
    "modalities": ("texts alone are written", (["text"],)),
    "web_search_options": ("the client runs tools", ()),
    "tfs_z": ("min_p and top_p cut the tail", (1,)),
    "echo": ("the client has the prompt", ()),
}


def check_refused(kind: type[Body], given: dict[str, Any]) -> tuple[str, str] | None:
    """Returns the first field that cannot be followed, and what is wrong with it."""
    if issubclass(kind, EmbeddingBody | OllamaEmbedBody | RerankBody) and _asks(given.get("lora")):
        return "lora", "cannot change here: POST /lora-adapters sets the scales of such requests"
    if not issubclass(kind, SharedBody):
        return None
    for name, (instead, harmless) in _REFUSED.items():
        value = given.get(name)
        if _asks(value) and value not in harmless:
            return name, f"is not supported: {instead}"
    if given.get("skip_special_tokens") is False:
        return "skip_special_tokens", "cannot be false: return_tokens has the control tokens"
    best_of, n = given.get("best_of"), given.get("n")
    if isinstance(best_of, int) and best_of > (n if isinstance(n, int) else 1):
        return "best_of", "must be at most n: the client picks the best of n texts"
    # Beginnings and ends that a template has not written.
    adds = issubclass(kind, CompletionBody | NativeBody)
    if given.get("add_special_tokens") not in (None, adds):
        return "add_special_tokens", "cannot change here: /tokenize has it, and prompt takes ids"
    for name in ("n", "n_cmpl"):
        if given.get(name) not in (None, 1) and not issubclass(kind, GenerationBody):
            return name, "must be 1 here: /v1/chat/completions writes several texts"
    return None


def _asks(value: object) -> bool:
    if isinstance(value, list):
        return any(not _is_scale_of_zero(each) for each in value)
    return value not in (None, False, "", {})


def _is_scale_of_zero(value: object) -> bool:
    """In llama.cpp's list of adapters."""
    return isinstance(value, dict) and value.get("scale") == 0
