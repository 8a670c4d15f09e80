"""`POST /props`, which changes defaults of requests, and `/tokenizer_info`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.replicated import replicated
from support.serving import Server, nano_server, running

TEXT: dict[str, Any] = {"prompt": "def add(a, b):", "n_predict": 24, "seed": 3}


@pytest.fixture
def changeable() -> Iterator[Server]:
    with running(nano_server(with_props=True, seed=7)) as server:
        yield server


def change(server: Server, **values: Any) -> None:
    done = server.post("/props", default_generation_settings={"params": values})
    assert done == {"success": True}


def shown(server: Server) -> dict[str, Any]:
    found: dict[str, Any] = server.get("/props")["default_generation_settings"]["params"]
    return found


def test_defaults_are_changed(changeable: Server) -> None:
    before = shown(changeable)
    assert changeable.get("/props")["endpoint_props"] is True
    greedy = changeable.post("/completion", **TEXT, temperature=0)["content"]
    drawn = changeable.post("/completion", **TEXT, temperature=1.5)["content"]
    assert greedy != drawn
    change(changeable, temperature=0)
    assert changeable.post("/completion", **TEXT)["content"] == greedy
    assert changeable.post("/completion", **TEXT, temperature=1.5)["content"] == drawn
    change(changeable, top_k=3, samplers=["top_k", "temperature"])
    now = shown(changeable)
    assert (now["temperature"], now["top_k"], now["samplers"]) == (0, 3, ["top_k", "temperature"])
    changed = ("temperature", "top_k", "samplers")
    assert {k: v for k, v in now.items() if k not in changed} == {
        k: v for k, v in before.items() if k not in changed
    }


@pytest.mark.parametrize(
    ("body", "about"),
    [
        ({"chat_template": "x"}, "chat_template"),
        ({"default_generation_settings": 5}, "default_generation_settings"),
        ({"default_generation_settings": {"params": 5}}, "default_generation_settings.params"),
        ({"default_generation_settings": {"params": {"n_predict": 5}}}, "n_predict"),
        ({"default_generation_settings": {"params": {"seed": 5}}}, "seed"),
        ({"default_generation_settings": {"params": {"top_p": 5}}}, "top_p"),
        ({"default_generation_settings": {"params": {"samplers": ["no"]}}}, "samplers"),
    ],
)
def test_what_cannot_be_changed(changeable: Server, body: dict[str, Any], about: str) -> None:
    before = shown(changeable)
    status, error = changeable.refused("/props", body)
    assert (status, error["param"]) == (400, about)
    assert shown(changeable) == before


def test_only_where_the_operator_wants_it(server: Server) -> None:
    status, error = server.refused("/props", {})
    assert (status, error["message"]) == (
        501, "POST /props, which needs --props, is not supported by this server"
    )  # fmt: skip
    with replicated(with_props=True) as replicas:
        assert replicas.refused("/props", {})[0] == 501


def test_the_tokenizer(server: Server) -> None:
    found, tokenizer = server.get("/tokenizer_info"), server.runtime.tokenizer
    assert found["vocab_size"] == tokenizer.n_vocab
    assert found["chat_template"] == server.get("/props")["chat_template"]
    assert found["eos_token"] == server.get("/props")["eos_token"] != ""
    ids = server.post("/tokenize", content="a", add_special=True)["tokens"]
    assert (ids[0] == tokenizer.bos_id) is found["add_bos_token"]
    assert found["model_max_length"] == server.get("/v1/models")["data"][0]["max_model_len"]
