"""The same requests to llama.cpp's server: what its clients find there, they find here."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.serving import SETTINGS, Server, running, wait_until

from nextn.core import load, nano
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor, open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf
from nextn.core.server.loading import prepare

pytestmark = pytest.mark.peer

Ask = Callable[[str, str, Any], tuple[int, Any]]
MESSAGES = [{"role": "user", "content": "hello"}]
PLAIN = {"repeat_penalty": 1.0, "top_p": 0.95}  # llama.cpp takes the file's, this server its own
GREEDY = {"temperature": 0, "max_tokens": 8, "n_predict": 8}
# Of things that this server does not have: other samplers' places, its web page, media, tools.
ABSENT = (
    "backend_sampling", "chat_format", "generation_prompt", "grammar_lazy", "grammar_triggers",
    "preserved_tokens", "reasoning_format", "reasoning_in_content", "media_marker", "video", "ui",
    "ui_settings", "cors_proxy_enabled", "model_ftype", "ftype", "models", "chat_template_caps",
)  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> Iterator[Ask]:
    with llama_server(nano.path()) as ask:
        yield ask


@contextmanager
def llama_server(model: Path) -> Iterator[Ask]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_parallel, params.n_ctx, params.verbosity, params.port = 2, 2048, 1, 0
    params.cpuparams.n_threads = 1
    params.endpoint_metrics = params.endpoint_slots = True
    serving = xllamacpp.Server(params)  # as long as this name is held
    address: str = serving.listening_address

    def ask(method: str, path: str, body: Any) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(address + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                status, text = response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read().decode()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text

    wait_until(lambda: ask("GET", "/health", None)[0] == 200)
    yield ask
    assert serving.listening_address == address


def paths(value: Any, prefix: str = "") -> set[str]:
    """Of all members, those of the first item of a list included."""
    if isinstance(value, list) and value:
        return paths(value[0], f"{prefix}[].")
    if not isinstance(value, dict):
        return set()
    return {f"{prefix}{name}" for name in value}.union(
        *(paths(inner, f"{prefix}{name}.") for name, inner in value.items())
    )


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/health", None), ("GET", "/props", None), ("GET", "/slots", None),
        ("GET", "/v1/models", None), ("GET", "/nothing", None),
        ("POST", "/completion", {"prompt": "def f(", "n_probs": 2, **GREEDY}),
        ("POST", "/completion",
         {"prompt": "def f(", "n_probs": 2, "post_sampling_probs": True, **GREEDY}),
        ("POST", "/v1/completions", {"prompt": "def f(", "logprobs": 2, **GREEDY}),
        ("POST", "/v1/chat/completions", {"messages": MESSAGES, **GREEDY}),
        ("POST", "/v1/chat/completions",
         {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, **GREEDY}),
        ("POST", "/tokenize", {"content": "def f", "with_pieces": True}),
        ("POST", "/detokenize", {"tokens": [5, 6]}),
        ("POST", "/apply-template", {"messages": MESSAGES}),
        ("POST", "/completion", {"prompt": "a", "n_predict": -5}), ("POST", "/completion", {}),
        ("POST", "/completion", {"prompt": [300] * 5000}),
    ],
)  # fmt: skip
def test_members(server: Server, theirs: Ask, method: str, path: str, body: Any) -> None:
    status, expected = theirs(method, path, body)
    found, told, _ = server.request(method, path, body)
    assert found == status, (expected, told)
    missing = paths(expected) - paths(told)
    assert not {name for name in missing if not set(name.split(".")) & set(ABSENT)}


def test_texts_and_metrics(server: Server, theirs: Ask) -> None:
    body = {"prompt": "def f(", **PLAIN, "temperature": 0, "n_predict": 3}
    assert (
        theirs("POST", "/completion", body)[1]["content"]
        == server.post("/completion", **body)["content"]
    )
    for tool, ask in (
        ("tokenize", {"content": "x = 'é'\n"}),
        ("apply-template", {"messages": MESSAGES}),
    ):
        assert theirs("POST", f"/{tool}", ask)[1] == server.post(f"/{tool}", **ask)
    names = [
        {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        for text in (theirs("GET", "/metrics", None)[1], server.get("/metrics"))
    ]
    assert names[0] <= names[1]


def test_the_order_of_a_stream(server: Server, theirs: Ask) -> None:
    for path, body in (
        ("/completion", {"prompt": "def f("}), ("/v1/chat/completions", {"messages": MESSAGES}),
    ):  # fmt: skip
        whole = {**body, **PLAIN, "temperature": 0, "max_tokens": 3, "n_predict": 3, "stream": True}
        whole["stream_options"] = {"include_usage": True}
        shapes = []
        for text in (theirs("POST", path, whole)[1], server.request("POST", path, whole)[1]):
            events = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
            values = [json.loads(event) for event in events if event != "[DONE]"]
            if path == "/completion":
                shapes.append([(value["content"], value["stop"]) for value in values])
            else:
                shapes.append(
                    [(c["delta"], c["finish_reason"]) for v in values for c in v["choices"]]
                )
                assert events[-1] == "[DONE]"
                assert values[-1]["choices"] == []
                assert values[-1]["usage"]["completion_tokens"] == 3
        assert shapes[0] == shapes[1]


def _in_floats(name: str, tensor: Tensor) -> TensorData:
    values = tensor.floats().reshape(tensor.shape)
    kind = "F32" if tensor.format.name == "F32" else "F16"
    numbers = values.astype(np.float32 if kind == "F32" else np.float16)
    return TensorData(name, tensor.shape, find_format(kind), numbers.tobytes())


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Ask]]:
    """Both servers, of the bundled model in F16."""
    path = tmp_path_factory.mktemp("floats") / "nano-f16.gguf"
    with open_gguf(nano.path()) as file:
        entries = {key: file.metadata.entry(key) for key in file.metadata}
        tensors = [_in_floats(name, tensor) for name, tensor in file.tensors.items()]
        write_gguf(path, entries, tensors)
    with (
        running(Server(lambda: prepare(load(path, "cpu"), 2, None), SETTINGS)) as server,
        llama_server(path) as ask,
    ):
        yield server, ask


@pytest.mark.parametrize(
    "how",
    [
        {"temperature": 0.8, "top_k": 12, "min_p": 0},
        {"temperature": 1.3, "top_p": 0.8, "min_p": 0, "repeat_penalty": 1.4},
        {"temperature": 1, "min_p": 0.05, "presence_penalty": 0.6},
        {"temperature": 0},
    ],
)
def test_what_is_behind_the_samplers(floats: tuple[Server, Ask], how: dict[str, Any]) -> None:
    """Of the first token, since seeds mean something else there. Weights and activations are
    floats, so that nothing but the samplers can differ."""
    server, theirs = floats
    body: dict[str, Any] = {"prompt": "def f(", "n_predict": 1, "n_probs": 40, **PLAIN, **how}
    body["post_sampling_probs"] = True
    found = []
    for told in (theirs("POST", "/completion", body)[1], server.post("/completion", **body)):
        (entry,) = told["completion_probabilities"]
        found.append({each["id"]: each["prob"] for each in entry["top_probs"]})
        assert found[-1].get(entry["id"], entry["prob"]) == entry["prob"]
    expected, ours = found
    for token in expected.keys() | ours.keys():
        assert ours.get(token, 0) == pytest.approx(expected.get(token, 0), abs=0.002), token
    assert max(ours.values()) > 0.02
