"""Prompts for the middle of a file: order of the parts, and what is left out when room is short."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.serving import Server
from support.vocab import tokenizer_metadata

from nextn.core.server.api_errors import ApiError
from nextn.core.server.infill import infill_tokens
from nextn.core.server.request_bodies import InfillBody
from nextn.core.server.request_decoding import decode
from nextn.core.tokenizer import Tokenizer, load_tokenizer

MARKS = {"pre": "<|fim_prefix|>", "suf": "<|fim_suffix|>", "mid": "<|fim_middle|>"}
REPO = {"rep": "<|repo_name|>", "sep": "<|file_sep|>"}


def tokenizer_with(marks: dict[str, str]) -> Tokenizer:
    metadata = tokenizer_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    for i, text in enumerate(marks.values()):
        tokens[len(tokens) - 10 - i] = text
    return load_tokenizer(metadata)


PLAIN, REPOSITORY = tokenizer_with(MARKS), tokenizer_with(MARKS | REPO)


def shown(tokenizer: Tokenizer, room: int = 1000, **fields: Any) -> str:
    tokens = infill_tokens(decode(InfillBody, fields), tokenizer, room)
    assert len(tokens) <= room
    return tokenizer.decode(tokens, show_special=True)


def test_the_parts_come_in_the_order_that_models_know() -> None:
    told = shown(PLAIN, input_prefix="a(", input_suffix=")b", prompt="x")
    assert told == "<|fim_prefix|>a(<|fim_suffix|>)b<|fim_middle|>x"


def test_other_files_come_first() -> None:
    files = [{"filename": "one.py", "text": "1"}, {"text": "2"}]
    told = shown(REPOSITORY, input_prefix="a", input_suffix="b", input_extra=files)
    assert told == (
        "<|repo_name|>myproject\n<|file_sep|>one.py\n1<|file_sep|>tmp\n2"
        "<|file_sep|>filename\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    )
    assert "--- snippet ---\n\none.py\n1" in shown(PLAIN, input_extra=files)


def test_marks_in_the_text_are_text() -> None:
    told = infill_tokens(decode(InfillBody, {"input_prefix": "<|fim_middle|>"}), PLAIN, 1000)
    assert told.count(PLAIN.fim_ids["mid"]) == 1


@given(st.integers(0, 300), st.integers(0, 300), st.integers(12, 400), st.integers(0, 3))
def test_the_nearest_text_is_kept(before: int, behind: int, room: int, n_files: int) -> None:
    files = [{"filename": "f", "text": "q" * 40}] * n_files
    told = shown(
        PLAIN, room, input_prefix="p" * before + "P", input_suffix="S" + "s" * behind,
        input_extra=files,
    )  # fmt: skip
    assert "P<|fim_suffix|>S" in told
    if before + behind + 40 * n_files + 100 < room:
        assert told.count("p") >= before


@pytest.mark.parametrize(
    ("fields", "about"),
    [
        ({"input_prefix": 3}, "input_prefix"),
        ({"input_extra": "x"}, "input_extra"),
        ({"input_extra": ["x"]}, "input_extra[0]"),
        ({"input_extra": [{"filename": "x"}]}, "input_extra[0].text"),
    ],
)
def test_odd_fields_are_refused(fields: dict[str, Any], about: str) -> None:
    with pytest.raises(ApiError) as refusal:
        infill_tokens(decode(InfillBody, fields), PLAIN, 1000)
    assert refusal.value.param == about


def test_by_way_of_http(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"input_prefix": "def f(", "input_suffix": "return x", "n_predict": 4}
    done = server.post("/infill", **body)
    assert done["prompt"].endswith("def f(<|fim_suffix|>return x<|fim_middle|>")
    assert done["tokens_predicted"] == 4
    monkeypatch.setattr(server.runtime.tokenizer, "fim_ids", {"pre": 1})
    status, error = server.refused("/infill", body)
    assert status == 501
    assert "fim_suf" in error["message"]
