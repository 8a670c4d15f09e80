"""llama.cpp's `/infill`: what belongs between a prefix and a suffix, other files in view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ..tokenizer import Tokenizer
from .asked import read_asked
from .errors import not_supported
from .fields import Fields
from .generation import start
from .guard import owner_of
from .json_body import aside, read_object
from .native import NativeFormat
from .sampling_fields import read_max_tokens
from .service import Service

MAX_FILES: Final = 1024
_MARKS: Final = ("pre", "suf", "mid")
_PREFIX_SHARE: Final = 0.75  # of the room: what stands before tells more than what stands behind
_USUAL: Final = 128  # tokens to write, if the request does not say


async def infill(request: Request) -> Response:
    service: Service = request.app.state.service
    fields = await read_object(request, service.settings)
    tokenizer = service.tokenizer
    if missing := [name for name in _MARKS if name not in tokenizer.fim_ids]:
        raise not_supported(f"/infill (this model has no fim_{missing[0]} token)")
    n_predict = read_max_tokens(fields, service.settings)
    room = service.n_ctx - (_USUAL if n_predict is None else n_predict) - 1
    owner = owner_of(request, fields)

    def read() -> NativeFormat:
        tokens = infill_tokens(fields, tokenizer, max(room, 8))
        asked = read_asked(service, fields, [tokens], logprobs=None, owner=owner)
        return NativeFormat(asked, service)

    return await start(service, await aside(fields.size, read))


def infill_tokens(fields: Fields, tokenizer: Tokenizer, room: int) -> list[int]:
    """`room`: tokens that may be used; the text around the gap goes before other files."""

    def cut(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    prefix = cut(fields.text("input_prefix") or "")
    suffix = cut(fields.text("input_suffix") or "")
    begun = cut(fields.text("prompt") or "")[: room // 4]
    ids = tokenizer.fim_ids
    extra = list(_files(fields, tokenizer))
    own = [ids["sep"], *cut("filename\n")] if "rep" in ids and "sep" in ids else []
    marks = len(_MARKS) + len(own) + 1
    prefix, suffix = _fit(prefix, suffix, room - marks - len(begun))
    told = [*own, ids["pre"], *prefix, ids["suf"], *suffix, ids["mid"], *begun]
    first = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    seen: list[int] = []
    for tokens in reversed(extra):  # the last ones are the most relevant
        if len(first) + len(tokens) + len(seen) + len(told) > room:
            break
        seen = tokens + seen
    return first + seen + told


def _files(fields: Fields, tokenizer: Tokenizer) -> Iterable[list[int]]:
    """The repository's name, then each file."""
    given = fields.items("input_extra")
    if len(given) > MAX_FILES:
        fields.refuse("input_extra", f"may be at most {MAX_FILES} files, got {len(given)}")
    ids = tokenizer.fim_ids
    for i, value in enumerate(given):
        if not isinstance(value, dict):
            fields.refuse(f"input_extra[{i}]", "must be an object")
        each = Fields(value, f"input_extra[{i}].")
        if "text" not in each:
            each.refuse("text", "is missing")
        name, text = each.text("filename") or "tmp", each.text("text") or ""
        head = f"{name}\n" if "sep" in ids else f"\n\n--- snippet ---\n\n{name}\n"
        body = tokenizer.encode(f"{head}{text}", add_special=False, parse_special=False)
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
