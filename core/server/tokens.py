"""`/tokenize`, `/detokenize` and `/apply-template`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..tokenizer import Tokenizer
from .chat_prompt import read_chat_prompt
from .json_body import aside, read_object
from .replies import JsonResponse
from .request_bodies import ChatBody, DetokenizeBody, TokenizeBody
from .request_decoding import refuse
from .service import Service


async def tokenize(request: Request) -> Response:
    """llama.cpp's form has `content`; vLLM's has `prompt`, and adds special tokens by default."""
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, TokenizeBody)
    tokenizer, is_vllm = service.tokenizer, body.content is None and body.prompt is not None
    text = (body.prompt if is_vllm else body.content) or ""
    add_special = body.add_special_tokens if body.add_special is None else body.add_special
    if add_special is None:
        add_special = is_vllm
    parse_special = body.parse_special is not False

    def run() -> list[int]:
        return tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

    tokens = await aside(len(text), run)
    if body.with_pieces:
        return JsonResponse({"tokens": [_with_piece(token, tokenizer) for token in tokens]})
    result: dict[str, Any] = {"tokens": tokens}
    if is_vllm:
        result |= {"count": len(tokens), "max_model_len": service.n_ctx}
    return JsonResponse(result)


def _with_piece(token: int, tokenizer: Tokenizer) -> dict[str, Any]:
    piece = tokenizer.piece(token, show_special=True)
    try:
        return {"id": token, "piece": piece.decode()}
    except UnicodeDecodeError:
        return {"id": token, "piece": list(piece)}


async def detokenize(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, DetokenizeBody)
    tokenizer, tokens = service.tokenizer, body.tokens or []
    for i, token in enumerate(tokens):
        if not 0 <= token < tokenizer.n_vocab:
            refuse("tokens", f"must hold ids 0 ... {tokenizer.n_vocab - 1}; place {i} is not")
    text = await aside(body.size, lambda: tokenizer.decode(tokens, show_special=True))
    return JsonResponse({"content": text, "prompt": text})


async def apply_template(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, ChatBody)
    prompt = await read_chat_prompt(service, body)
    return JsonResponse({"prompt": prompt.text})
