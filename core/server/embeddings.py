"""Embeddings, as OpenAI (`/v1/embeddings`), llama.cpp (`/embeddings`), Ollama (`/api/embed`) do it.

A vector is of the rows behind the last norm. Texts are read one after the other, in pieces between
two steps of the engine: other requests wait for one piece, as for that of a prompt.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from ..worker.totals import Totals
from .api_errors import ApiError, not_supported
from .json_body import read_object
from .prompts import check_length, read_prompts_with_images
from .replies import JsonResponse
from .request_bodies import EmbeddingBody, OllamaEmbedBody
from .request_decoding import refuse
from .request_images import encode_prompt_images
from .request_log import note_read
from .service import Service

if TYPE_CHECKING:
    from ..state.embedded_rows import ModelPrompt
    from ..vision.image_prompt import ImagePrompt

Vector = NDArray[np.float32]
NONE, MEAN, CLS, LAST, RANK = "none", "mean", "cls", "last", "rank"
POOLINGS: Final = (NONE, MEAN, CLS, LAST, RANK)  # by llama.cpp's numbers
_LARGEST: Final = 32760  # of a vector that is normalised for 16 bits


class Embedded(Struct, frozen=True):
    vectors: list[Vector]  # of each text; rows with pooling none
    n_tokens: int


async def openai(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, EmbeddingBody)
    if body.content is not None:
        return await _native(request, body)
    if _pooling(service) == NONE:
        refuse("input", "has no vector of its own with --pooling none; /embeddings gives rows")
    if body.dimensions is not None:
        refuse("dimensions", "cannot be chosen with this model")
    found = await _embed(request, body.input, body.embd_normalize)
    form = body.encoding_format or "float"
    more = {"encoding_format": form} if form != "float" else {}
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(vector, form), **more}
        for i, vector in enumerate(found.vectors)
    ]
    usage = {"prompt_tokens": found.n_tokens, "total_tokens": found.n_tokens}
    name = body.model or service.model_name
    return JsonResponse({"object": "list", "model": name, "data": data, "usage": usage})


async def native(request: Request) -> Response:
    service: Service = request.app.state.service
    return await _native(request, await read_object(request, service.settings, EmbeddingBody))


async def ollama(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, OllamaEmbedBody)
    name = body.model or service.model_name
    is_old = request.url.path.endswith("/embeddings")
    found = await _embed(request, body.prompt if is_old else body.input, None)
    vectors = [vector.tolist() for vector in found.vectors]
    if is_old:
        return JsonResponse({"embedding": vectors[0]})
    return JsonResponse({"model": name, "embeddings": vectors, "prompt_eval_count": found.n_tokens})


async def _native(request: Request, body: EmbeddingBody) -> Response:
    texts = body.content if body.input is None else body.input
    found = await _embed(request, texts, body.embd_normalize)
    rows = [np.atleast_2d(vector).tolist() for vector in found.vectors]
    return JsonResponse([{"index": i, "embedding": each} for i, each in enumerate(rows)])


async def _embed(request: Request, texts: Any, norm: int | None) -> Embedded:
    service: Service = request.app.state.service
    if texts is None or texts in ("", []):
        refuse("input", "is empty")
    try:
        prompts = read_prompts_with_images(texts, service)
    except ApiError as error:
        if error.param is None or not error.param.startswith("prompt"):
            raise
        name = f"input{error.param.removeprefix('prompt')}"
        raise ApiError(400, error.message.replace(error.param, name, 1), param=name) from None
    for prompt in prompts:
        check_length(prompt, service.n_ctx)
    pooling = _pooling(service)
    if pooling == RANK:
        raise not_supported("a model that ranks")
    vectors = [_pooled(await _rows_of(service, prompt), pooling) for prompt in prompts]
    power = service.settings.embd_normalize if norm is None else norm
    if pooling != NONE:
        vectors = [_normalised(vector, power) for vector in vectors]
    n_tokens = sum(map(len, prompts))
    note_read(request.scope, service.model_name, n_tokens)
    return Embedded(vectors, n_tokens)


async def _rows_of(service: Service, prompt: list[int] | ImagePrompt) -> Vector:
    if isinstance(prompt, list):
        return await read_rows(service, prompt)
    encoded, _ms = await encode_prompt_images(service, prompt)
    return await read_rows(service, encoded)


async def read_rows(service: Service, tokens: list[int] | ModelPrompt) -> Vector:
    """Of each token, behind the last norm."""
    worker, found = service.worker, []
    async with service.reading:
        pieces = service.runtime.hidden_pieces(tokens)
        while (piece := await worker.call(lambda _: _next(pieces, worker.totals))) is not None:
            found.append(piece)
    return np.concatenate(found)


def _next(pieces: Iterator[Vector], totals: Totals) -> Vector | None:
    began = time.perf_counter()
    piece = next(pieces, None)
    if piece is not None:
        totals.add_read(len(piece), 1000 * (time.perf_counter() - began))
        totals.steps += 1
    return piece


def _pooling(service: Service) -> str:
    """The flag's, else the file's, else the mean."""
    if service.settings.pooling is not None:
        return service.settings.pooling
    metadata = service.runtime.file.metadata
    number = metadata.get(f"{metadata.architecture}.pooling_type")
    known = isinstance(number, int) and 0 < number < len(POOLINGS)
    return POOLINGS[number] if known and isinstance(number, int) else MEAN


def _pooled(rows: Vector, pooling: str) -> Vector:
    if pooling == NONE:
        return rows
    found: Vector = rows.mean(axis=0)
    if pooling != MEAN:
        found = rows[0] if pooling == CLS else rows[-1]
    return found


def _normalised(vector: Vector, power: int) -> Vector:
    """-1: as it is; 0: the largest element is 32760; 2: of length 1; p: of p-norm 1."""
    largest = np.abs(vector).max()
    if power < 0 or not largest:
        return vector
    unit: Vector = vector / largest  # powers of it stay numbers
    return unit * _LARGEST if power == 0 else unit / np.linalg.norm(unit, power)


def _encoded(vector: Vector, form: str) -> Any:
    if form == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
