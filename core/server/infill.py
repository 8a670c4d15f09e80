"""llama.cpp's `/infill`: what belongs between a prefix and a suffix, other files in view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ..tokenizer import Tokenizer
from .api_errors import not_supported
from .body_parts import InfillFile
from .generation_response import start
from .guard import owner_of
from .json_body import aside, read_object
from .native import NativeFormat
from .parsed_request import parse_request
from .request_bodies import InfillBody
from .sampling_fields import read_max_tokens
from .service import Service

_MARKS: Final = ("pre", "suf", "mid")
_PREFIX_SHARE: Final = 0.75  # of the room: the text before matters more than the text behind
_USUAL: Final = 128  # tokens to write, by default


async def infill(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, InfillBody)
    tokenizer = service.tokenizer
    if missing := [name for name in _MARKS if name not in tokenizer.fim_ids]:
        raise not_supported(f"/infill (this model has no fim_{missing[0]} token)")
    n_predict = read_max_tokens(body, service.settings)
    room = service.n_ctx - (_USUAL if n_predict is None else n_predict) - 1
    owner = owner_of(request, body)

    def read() -> NativeFormat:
        tokens = infill_tokens(body, tokenizer, max(room, 8))
        parsed = parse_request(service, body, [tokens], logprobs=None, owner=owner)
        return NativeFormat(parsed, service)

    return await start(service, await aside(body.size, read))


def infill_tokens(body: InfillBody, tokenizer: Tokenizer, room: int) -> list[int]:
    """`room`: tokens that may be used; the text around the gap goes before other files."""

    def cut(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    prefix = cut(body.input_prefix or "")
    suffix = cut(body.input_suffix or "")
    begun = cut(body.prompt or "")[: room // 4]
    ids = tokenizer.fim_ids
    extra = list(_files(body.input_extra or [], tokenizer))
    own = [ids["sep"], *cut("filename\n")] if "rep" in ids and "sep" in ids else []
    marks = len(_MARKS) + len(own) + 1
    prefix, suffix = _fit(prefix, suffix, room - marks - len(begun))
    framed = [*own, ids["pre"], *prefix, ids["suf"], *suffix, ids["mid"], *begun]
    first = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    seen: list[int] = []
    for tokens in reversed(extra):  # the last ones are the most relevant
        if len(first) + len(tokens) + len(seen) + len(framed) > room:
            break
        seen = tokens + seen
    return first + seen + framed


def _files(files: list[InfillFile], tokenizer: Tokenizer) -> Iterable[list[int]]:
    """The repository's name, then each file."""
    ids = tokenizer.fim_ids
    for i, file in enumerate(files):
        name = file.filename or "tmp"
        head = f"{name}\n" if "sep" in ids else f"\n\n--- snippet ---\n\n{name}\n"
        body = tokenizer.encode(f"{head}{file.text}", add_special=False, parse_special=False)
        mark = [ids["sep"]] if "sep" in ids else []
        if i == 0 and "rep" in ids:
            name_of_all = tokenizer.encode("myproject\n", add_special=False)
            mark = [ids["rep"], *name_of_all, *mark]
        yield mark + body


def _fit(prefix: list[int], suffix: list[int], room: int) -> tuple[list[int], list[int]]:
    """The end of the prefix and the beginning of the suffix."""
    room = max(room, 0)
    if len(prefix) + len(suffix) <= room:
        return prefix, suffix
    n_suffix = min(len(suffix), max(room - len(prefix), round(room * (1 - _PREFIX_SHARE))))
    n_prefix = room - n_suffix
    return prefix[len(prefix) - n_prefix :] if n_prefix else [], suffix[:n_suffix]
