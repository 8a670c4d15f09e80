"""Speculation in the words of LM Studio's and Ollama's requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import Server, nano_server, running

from nextn.core.speculation.options import SpecOptions

DRAFTER = Path(__file__).parents[2] / "data" / "nano-eagle3.gguf"
BODY = {"prompt": "def mean(values):", "max_tokens": 24, "temperature": 0, "return_sources": True}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    spec = SpecOptions(types=("auto",), draft_n_max=3, fixed=True)
    with running(nano_server(n=1, spec=spec, how={"draft": DRAFTER})) as found:
        yield found


def counts(server: Server, **fields: Any) -> dict[str, int]:
    """Tokens by drafter."""
    before = {each["name"]: each["draft_n"] for each in server.get("/props")["drafters"]}
    server.post("/v1/completions", **BODY, **fields)
    after = {each["name"]: each["draft_n"] for each in server.get("/props")["drafters"]}
    return {name: after[name] - before[name] for name in after if after[name] > before[name]}


def test_fields_of_lm_studio(server: Server) -> None:
    longest = {"draftMaxTokens": 1}
    assert {*counts(server, speculativeDecoding={"draftMtp": True})} == {"mtp"}
    one = counts(server, speculativeDecoding={"draftMtp": True} | longest)["mtp"]
    assert one < counts(server, speculativeDecoding={"draftMtp": True})["mtp"]
    assert {*counts(server, draft_model="nano-eagle3")} == {"eagle3"}
    older = {"draftModel": "somewhere/data/nano-eagle3.gguf", "maxTokensToDraft": 0}
    assert counts(server, speculativeDecoding=older) == {}
    text = server.post("/v1/completions", **BODY)["choices"][0]["text"]
    same = server.post("/v1/completions", **BODY, speculativeDecoding={"numDraftTokensExact": 2})
    assert same["choices"][0]["text"] == text


def test_draft_num_predict_of_ollama(server: Server) -> None:
    body = {"model": "nano", "prompt": BODY["prompt"], "raw": True, "stream": False}
    texts = set()
    for n, drafts in ((0, False), (2, True), (-1, True)):
        before = sum(each["draft_n"] for each in server.get("/props")["drafters"])
        options = {"draft_num_predict": n, "num_predict": 24, "temperature": 0}
        texts.add(server.post("/api/generate", **body, options=options)["response"])
        after = sum(each["draft_n"] for each in server.get("/props")["drafters"])
        assert (after > before) == drafts
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"draft_model": "qwen-0.5b"}, "is not loaded (there is nano-eagle3.gguf)"),
        ({"speculativeDecoding": {"draftModel": "x.gguf"}}, "start the server with -md"),
        ({"speculativeDecoding": {"draftDflashSidecar": "x.gguf"}}, "needs dflash"),
        ({"speculativeDecoding": {"draftMaxTokens": -1}}, "speculativeDecoding.draftMaxTokens"),
        ({"speculativeDecoding": {"draftMtp": True}, "speculative": False}, "the same: give one"),
        ({"speculativeDecoding": 3}, "speculativeDecoding"),
    ],
)  # fmt: skip
def test_what_cannot_be(fields: dict[str, Any], message: str, server: Server) -> None:
    status, error = server.refused("/v1/completions", BODY | fields)
    assert status == 400
    assert message in error["message"]
