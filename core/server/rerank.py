"""`/rerank`: how well documents answer a query, by a decoder that was trained to say yes or no.

Such a file (Qwen3-Reranker in GGUF) has a classifier of two rows in place of an output matrix, and
a template for the pair of texts. A score is the share of "yes" after the template's last token.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ..models.model_weights import CLASSIFIER, is_reranker
from .api_errors import not_supported
from .embeddings import read_rows
from .json_body import aside, read_object
from .prompts import check_length, refuse_endless
from .replies import JsonResponse
from .request_bodies import RerankBody
from .request_decoding import refuse
from .request_log import note_read

if TYPE_CHECKING:
    from .embeddings import Vector
    from .service import Service

_TEMPLATE = "tokenizer.chat_template.rerank"
_PLACE = re.compile(r"\{(query|document)\}")


async def rerank(request: Request) -> Response:
    """In Jina's form; in that of text-embeddings-inference where `texts` has the documents."""
    service: Service = request.app.state.service
    template = _template(service)
    body = await read_object(request, service.settings, RerankBody)
    documents, is_tei = _documents(body)
    query = body.query
    if not query:
        refuse("query", "is missing" if query is None else "is empty")
    prompts = [await _prompt(template, query, each, service) for each in documents]
    scores = [await _score(prompt, service) for prompt in prompts]
    n_tokens = sum(map(len, prompts))
    note_read(request.scope, service.model_name, n_tokens)
    best = sorted(range(len(scores)), key=lambda i: -scores[i])[: body.top_n]
    if is_tei:
        texts = [{"text": each} if body.return_text else {} for each in documents]
        return JsonResponse([{"index": i, "score": scores[i], **texts[i]} for i in best])
    results = [{"index": i, "relevance_score": scores[i]} for i in best]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    name = body.model or service.model_name
    return JsonResponse({"object": "list", "model": name, "results": results, "usage": usage})


def _template(service: Service) -> str:
    file = service.runtime.file
    if not is_reranker(file):
        raise not_supported("reranking with this model, whose file is no reranker's,")
    found = file.metadata.get(_TEMPLATE)
    if not isinstance(found, str) or {*_PLACE.findall(found)} != {"query", "document"}:
        raise not_supported(f"reranking with this model, whose file has no {_TEMPLATE},")
    return found


def _documents(body: RerankBody) -> tuple[list[str], bool]:
    """The documents, and whether they came as `texts`."""
    name = "documents" if body.texts is None else "texts"
    found = body.documents if body.texts is None else body.texts
    if not found:
        refuse(name, "is missing" if found is None else "is empty")
    return found, body.texts is not None


async def _prompt(template: str, query: str, document: str, service: Service) -> list[int]:
    """Each place is filled once, whatever the texts hold."""
    tokenizer, n_ctx = service.tokenizer, service.n_ctx
    refuse_endless(query + document, tokenizer, n_ctx)
    texts = {"query": query, "document": document}
    text = _PLACE.sub(lambda found: texts[found[1]], template)
    tokens = await aside(len(text), lambda: tokenizer.encode(text, add_special=False))
    check_length(tokens, n_ctx)
    return tokens


async def _score(prompt: list[int], service: Service) -> float:
    row = (await read_rows(service, prompt))[-1]
    return share_of_yes(service.runtime.file.tensors[CLASSIFIER].floats(), row)


def share_of_yes(classifier: Any, row: Vector) -> float:
    """`classifier`: a row for "yes" and one for "no"."""
    logits = classifier.astype(np.float64) @ row.astype(np.float64)
    weights = np.exp(logits - logits.max())
    return float(weights[0] / weights.sum())
