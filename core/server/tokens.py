"""`/tokenize`, `/detokenize` and `/apply-template`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..tokenizer import Tokenizer
from .chat_prompt import read_chat_prompt
from .json_body import aside, read_object
from .replies import JsonResponse
from .service import Service


async def tokenize(request: Request) -> Response:
    """llama.cpp's form has `content`; vLLM's has `prompt`, and adds special tokens by default."""
    service: Service = request.app.state.service
    fields = await read_object(request, service.settings)
    tokenizer, name = service.tokenizer, fields.first("content", "prompt")
    is_vllm = name == "prompt"
    text = fields.text(name) or ""
    add_special = fields.flag(fields.first("add_special", "add_special_tokens"), is_vllm)
    parse_special = fields.flag("parse_special", True)

    def run() -> list[int]:
        return tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    tokens = await aside(len(text), run)
    if fields.flag("with_pieces"):
        return JsonResponse({"tokens": [_with_piece(token, tokenizer) for token in tokens]})
    told: dict[str, Any] = {"tokens": tokens}
    if is_vllm:
        told |= {"count": len(tokens), "max_model_len": service.n_ctx}
    return JsonResponse(told)


def _with_piece(token: int, tokenizer: Tokenizer) -> dict[str, Any]:
    piece = tokenizer.piece(token, show_special=True)
    try:
        return {"id": token, "piece": piece.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(piece)}


async def detokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    fields = await read_object(request, service.settings)
    tokenizer, tokens = service.tokenizer, fields.items("tokens")
    for i, token in enumerate(tokens):
        is_id = isinstance(token, int) and not isinstance(token, bool)
        if not is_id or not 0 <= token < tokenizer.n_vocab:
            fields.refuse(
                "tokens", f"must hold ids 0 ... {tokenizer.n_vocab - 1}; place {i} is not"
            )
    text = await aside(fields.size, lambda: tokenizer.decode(tokens, show_special=True))
    return JsonResponse({"content": text, "prompt": text})


async def apply_template(request: Request) -> Response:
    service: Service = request.app.state.service
    fields = await read_object(request, service.settings)
    prompt = await read_chat_prompt(service, fields)
    return JsonResponse({"prompt": prompt.text})
