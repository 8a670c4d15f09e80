"""Embeddings, through the clients that ask for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import ollama
import openai
import pytest
from support.serving import Server, nano_server, running

from nextn.core.state.sizes import PREFILL_CHUNK

TEXTS = ["def f(x):\n    return x", "import os", "a = 1"]


@pytest.fixture(scope="module")
def rows() -> Iterator[Server]:
    with running(nano_server(pooling="none", embd_normalize=-1)) as server:
        yield server


def vectors(server: Server, texts: Any, **more: Any) -> np.ndarray[Any, Any]:
    done = server.post("/v1/embeddings", input=texts, **more)
    assert [each["index"] for each in done["data"]] == list(range(len(done["data"])))
    return np.array([each["embedding"] for each in done["data"]])


def tokens_of(server: Server, text: str) -> list[int]:
    found: list[int] = server.post("/tokenize", content=text, add_special=True)["tokens"]
    return found


def test_openai(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    done = client.embeddings.create(model="m", input=TEXTS)  # in base64, which the client decodes
    assert np.allclose([each.embedding for each in done.data], vectors(server, TEXTS), atol=1e-6)
    tokens = [len(tokens_of(server, text)) for text in TEXTS]
    assert done.usage.prompt_tokens == sum(tokens)


def test_a_vector_does_not_depend_on_its_neighbours(server: Server) -> None:
    together = vectors(server, TEXTS)
    assert np.allclose(np.linalg.norm(together, axis=1), 1)
    for text, vector in zip(TEXTS, together, strict=True):
        assert np.array_equal(vectors(server, text)[0], vector)
    tokens = tokens_of(server, TEXTS[0])
    assert np.array_equal(vectors(server, [tokens])[0], together[0])


def test_it_is_the_mean_of_the_rows(server: Server, rows: Server) -> None:
    (found,) = rows.post("/embeddings", input=TEXTS[0])
    mean = np.mean(found["embedding"], axis=0)
    assert np.allclose(vectors(server, TEXTS[0])[0], mean / np.linalg.norm(mean), atol=1e-6)
    (alone,) = server.post("/embedding", content=TEXTS[0], embd_normalize=-1)
    assert np.allclose(alone["embedding"], [mean], atol=1e-6)


def test_lengths(server: Server) -> None:
    assert np.allclose(np.abs(vectors(server, "a", embd_normalize=1)).sum(), 1)
    assert np.allclose(np.abs(vectors(server, "a", embd_normalize=0)).max(), 32760)
    assert np.allclose(np.abs(vectors(server, "a", embd_normalize=1000)).max(), 1, atol=0.01)


def test_ollama(server: Server) -> None:
    client = ollama.Client(server.url)
    assert np.allclose(client.embed("m", TEXTS).embeddings, vectors(server, TEXTS), atol=1e-6)
    old = client.embeddings("m", TEXTS[0]).embedding
    assert np.allclose(old, vectors(server, TEXTS[0])[0], atol=1e-6)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "input is empty"),
        ({"input": ""}, "input is empty"),
        ({"input": []}, "input"),
        ({"input": [1 << 30]}, "input has token id"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 8}, "dimensions cannot be chosen"),
        ({"input": "a", "lora": [{"id": 0, "scale": 0.5}]}, "POST /lora-adapters"),
        ({"input": "x " * 20000}, "exceeds the available context size"),
    ],
)
def test_errors(server: Server, body: dict[str, Any], said: str) -> None:
    status, error = server.refused("/v1/embeddings", body)
    assert status == 400
    assert said in error["message"]


def test_openai_has_no_rows(rows: Server) -> None:
    status, error = rows.refused("/v1/embeddings", {"input": "a"})
    assert status == 400
    assert "--pooling none" in error["message"]


def test_other_requests_go_on_between_the_pieces_of_a_text(server: Server) -> None:
    """The pieces do not end before a completion has: it would wait for ever behind all of them."""
    runtime, has_ended = server.runtime, threading.Event()
    begun = threading.Event()

    def endless(tokens: list[int]) -> Iterator[np.ndarray[Any, Any]]:
        while not has_ended.is_set():
            begun.set()
            yield np.ones((1, 4), np.float32)

    with pytest.MonkeyPatch.context() as patched, ThreadPoolExecutor(1) as pool:
        patched.setattr(runtime, "hidden_pieces", endless)
        found = pool.submit(vectors, server, "def f(x)")
        assert begun.wait(60)
        done = server.post("/completion", prompt="def add(", n_predict=8)
        has_ended.set()
        assert done["tokens_predicted"] == 8
        assert np.allclose(found.result(), 0.5)


def test_long_texts_are_read_in_pieces_of_a_prompt(server: Server) -> None:
    tokens = tokens_of(server, "def f(x):\n    return x\n" * 120)
    pieces = list(server.runtime.hidden_pieces(tokens))
    assert [len(piece) for piece in pieces[:-1]] == [PREFILL_CHUNK] * (len(tokens) // PREFILL_CHUNK)
    assert np.array_equal(np.concatenate(pieces), server.runtime.hidden_rows(tokens))
    short = tokens[:20]  # read by a reader that is kept
    first = server.runtime.hidden_rows(short)
    assert np.array_equal(first, np.concatenate(pieces)[:20])
    assert np.array_equal(server.runtime.hidden_rows(short), first)


def test_what_was_read_is_counted() -> None:
    with running(nano_server(with_metrics=True)) as server:
        vectors(server, TEXTS)
        n = sum(len(tokens_of(server, text)) for text in TEXTS)
        lines = server.request("GET", "/metrics")[1].splitlines()
        counted = {line.split()[0]: float(line.split()[1]) for line in lines if line[:1] != "#"}
        assert counted["llamacpp:prompt_tokens_total"] == n
        assert counted["llamacpp:prompt_seconds_total"] > 0
        assert counted["llamacpp:n_decode_total"] == len(TEXTS)
        assert counted["llamacpp:tokens_predicted_total"] == 0
