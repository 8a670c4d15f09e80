"""`/rerank`, on a random tiny reranker, against transformers' logits of the two words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from support.every_family import build_family
from support.serving import Server, running

from nextn.cli.app import run
from nextn.core import load
from nextn.core.errors import ModelError
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Typed, ValueType
from nextn.core.gguf.writer import TensorData, write_gguf
from nextn.core.server.loading import prepare

YES, NO = 300, 17
TEMPLATE = "<Query>: {query}\n<Document>: {document}\n"
KEY = "tokenizer.chat_template.rerank"
DOCUMENTS = ["a cat sat", "rain in May", "x = 1", "{query} and {document}"]


class Reranker(NamedTuple):
    server: Server
    hf: Any

    def score(self, query: str, document: str) -> float:
        text = f"<Query>: {query}\n<Document>: {document}\n"
        tokens = self.server.post("/tokenize", content=text)["tokens"]
        with torch.no_grad():
            logits = self.hf(torch.tensor([tokens])).logits[0, -1, [YES, NO]]
        return float(torch.softmax(logits.double(), 0)[0])


def write_reranker(
    source: Path, path: Path, *, template: str | None = TEMPLATE, pooling: int = 4, rows: int = 2
) -> Path:
    with open_gguf(source) as file:
        entries: dict[str, Any] = {key: file.metadata.typed(key) for key in file.metadata}
        entries["qwen3.pooling_type"] = Typed(ValueType.U32, pooling)
        entries["qwen3.classifier.output_labels"] = ["yes", "no", "no"][:rows]
        if template is not None:
            entries[KEY] = template
        words = file.tensors.get("output.weight", file.tensors["token_embd.weight"]).floats()
        chosen = np.ascontiguousarray(words[[YES, NO, NO][:rows]])
        tensors = [TensorData.of(each) for each in file.tensors.values()]
        form = find_format("F32")
        tensors.append(TensorData("cls.output.weight", chosen.shape, form, chosen))
        write_gguf(path, entries, tensors)
    return path


def server_of(path: Path, **more: Any) -> Server:
    def make() -> Any:
        return prepare(load(path, "cpu", n_ctx=512), 2, None)

    return Server(make, **more)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return build_family("qwen3", tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def reranker(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reranker]:
    path = write_reranker(tiny.path, tmp_path_factory.mktemp("reranker") / "m.gguf")
    with running(server_of(path)) as server:
        yield Reranker(server, tiny.hf)


def test_scores_are_those_of_transformers(reranker: Reranker) -> None:
    done = reranker.server.post("/v1/rerank", query="weather", documents=DOCUMENTS, model="m")
    expected = [reranker.score("weather", each) for each in DOCUMENTS]
    results = done["results"]
    order = sorted(range(len(expected)), key=lambda i: -expected[i])
    assert [each["index"] for each in results] == order
    for each in results:
        assert each["relevance_score"] == pytest.approx(
            expected[each["index"]], abs=1e-4
        )  # keys have 16 bits
    assert len({round(score, 4) for score in expected}) == len(expected)
    assert (done["object"], done["model"]) == ("list", "m")
    assert done["usage"]["prompt_tokens"] == done["usage"]["total_tokens"] > 40


@pytest.mark.parametrize("path", ["/rerank", "/reranking", "/v1/rerank", "/v1/reranking"])
def test_the_best_alone(path: str, reranker: Reranker) -> None:
    body: dict[str, Any] = {"query": "q", "documents": DOCUMENTS}
    every = reranker.server.post(path, **body)["results"]
    assert reranker.server.post(path, **body, top_n=2)["results"] == every[:2]
    assert reranker.server.post(path, **body, top_n=99)["results"] == every
    (alone,) = reranker.server.post(path, query="q", documents=DOCUMENTS[2:3])["results"]
    (again,) = [each for each in every if each["index"] == 2]
    assert alone["relevance_score"] == again["relevance_score"]  # whatever else was asked


def test_the_form_of_text_embeddings_inference(reranker: Reranker) -> None:
    jina = reranker.server.post("/rerank", query="q", documents=DOCUMENTS)["results"]
    found = reranker.server.post("/rerank", query="q", texts=DOCUMENTS)
    scores = [{"index": each["index"], "score": each["relevance_score"]} for each in jina]
    assert found == scores
    found = reranker.server.post("/rerank", query="q", texts=DOCUMENTS, return_text=True)
    assert [each["text"] for each in found] == [DOCUMENTS[each["index"]] for each in jina]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"documents": ["a"]}, "query is missing"),
        ({"query": "", "documents": ["a"]}, "query is empty"),
        ({"query": 5, "documents": ["a"]}, "query must be a string"),
        ({"query": "q"}, "documents is missing"),
        ({"query": "q", "documents": []}, "documents is empty"),
        ({"query": "q", "texts": []}, "texts is empty"),
        ({"query": "q", "documents": "a"}, "documents must be a list"),
        ({"query": "q", "documents": [1, 2]}, "documents[0] must be a string"),
        ({"query": "q", "documents": [{"text": "a"}]}, "documents[0] must be a string"),
        (
            {"query": "q", "documents": ["a"], "top_n": 0},
            "top_n must be a whole number of at least 1",
        ),
        ({"query": "q", "documents": ["a"] * 1001}, "documents must be a list of at most 1000"),
        ({"query": "q", "documents": ["word " * 3000]}, "the request has"),
    ],
)
def test_requests_that_are_wrong(body: Any, message: str, reranker: Reranker) -> None:
    status, error = reranker.server.refused("/rerank", body)
    assert status == 400
    assert error["message"].startswith(message)


def test_the_file_has_no_fault(
    tiny: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["convert", "inspect", str(write_reranker(tiny.path, tmp_path / "m.gguf"))]) == 0
    assert "problem" not in capsys.readouterr().out


def test_other_requests_to_a_reranker(reranker: Reranker) -> None:
    status, error = reranker.server.refused("/v1/embeddings", {"input": "a"})
    assert status == 501
    assert "a model that ranks" in error["message"]
    assert reranker.server.post("/completion", prompt="a", n_predict=2)["tokens_predicted"] == 2


def test_models_that_are_no_rerankers(server: Server, tiny: Any, tmp_path: Path) -> None:
    body = {"query": "q", "documents": ["a"]}
    status, error = server.refused("/rerank", body)
    assert status == 501
    assert "whose file is no reranker's" in error["message"]
    for number, template in enumerate((None, "{query} alone")):
        path = write_reranker(tiny.path, tmp_path / f"{number}.gguf", template=template)
        with running(server_of(path)) as without:
            status, error = without.refused("/rerank", body)
            assert status == 501
            assert f"whose file has no {KEY}" in json.dumps(error)
    for pooling, rows in ((1, 2), (4, 3)):
        name = f"{pooling}-{rows}.gguf"
        path = write_reranker(tiny.path, tmp_path / name, pooling=pooling, rows=rows)
        with pytest.raises(ModelError, match="does not use tensors"):
            load(path, "cpu")
