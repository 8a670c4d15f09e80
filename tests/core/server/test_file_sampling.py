"""Sampling values of the model's file as defaults of requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.recommending import recommending
from support.serving import SETTINGS, Server, running

from nextn.core import nano
from nextn.core.load_runtime import load_runtime
from nextn.core.server.loading import prepare

PROMPT: dict[str, Any] = {"prompt": "def add(a, b):\n", "n_predict": 12}


def test_a_request_overrides_the_file(tmp_path: Path) -> None:
    path = recommending(nano.path(), tmp_path / "greedy.gguf", temp=0.0, top_k=7)

    def load() -> Any:
        runtime = load_runtime(path, "cpu")
        return prepare(runtime, 2, None, file_sampling=runtime.recommended_sampling)

    with running(Server(load, SETTINGS)) as server:
        props = server.get("/props")["default_generation_settings"]["params"]
        assert (props["temperature"], props["top_k"]) == (0, 7)
        greedy = server.post("/completion", **PROMPT, temperature=0)["content"]
        assert {server.post("/completion", **PROMPT, seed=n)["content"] for n in (1, 2)} == {greedy}
        drawn = {
            server.post("/completion", **PROMPT, seed=n, temperature=1.5, top_k=0)["content"]
            for n in (1, 2, 3)
        }
        assert len(drawn) > 1
