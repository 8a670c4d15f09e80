"""LoRA adapters of a server: `/lora-adapters`, and the field `lora` of requests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.adapter_files import write_adapter
from support.replicated import replicated
from support.serving import Server, nano_server, running, wait_until

from nextn.core import nano
from nextn.core.worker.worker import SLEEPING

TEXT: dict[str, Any] = {"prompt": "def add(a, b):\n", "n_predict": 16, "temperature": 0}
CHOICES: list[list[dict[str, Any]]] = [
    [], [{"id": 0, "scale": 1.0}], [{"id": 1, "scale": 1}],
    [{"id": 0, "scale": 0.25}, {"id": 1, "scale": -0.75}],
]  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    names = {"adapter.lora.task_name": "Classification", "adapter.lora.prompt_prefix": "classify: "}
    return [
        write_adapter(folder / "first.gguf", nano.path(), keys=names),
        write_adapter(folder / "second.gguf", nano.path(), seed=1),
    ]


@pytest.fixture(scope="module")
def server(files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    how = {"lora": [files[0], (files[1], 0.0)]}
    folder = tmp_path_factory.mktemp("slots")
    with running(nano_server(how=how, slot_folder=folder)) as started:
        yield started


def text(server: Server, **more: Any) -> str:
    found: str = server.post("/completion", **TEXT, **more)["content"]
    return found


def test_they_are_listed(server: Server, files: list[Path]) -> None:
    first, second = server.get("/lora-adapters")
    assert first == {
        "id": 0,
        "path": str(files[0]),
        "scale": 1.0,
        "task_name": "Classification",
        "prompt_prefix": "classify: ",
    }
    assert (second["id"], second["scale"], second["task_name"]) == (1, 0.0, "")


def test_each_request_has_its_own(server: Server) -> None:
    alone = [text(server, lora=choice) for choice in CHOICES]
    assert len(set(alone)) == len(CHOICES)
    assert text(server) == alone[1]
    with running(nano_server()) as plain:
        assert text(plain) == alone[0]
        assert plain.get("/lora-adapters") == []
        assert text(plain, lora=[]) == alone[0]
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(text, server, lora=choice) for choice in CHOICES * 3]
        assert [each.result() for each in asked] == alone * 3


def test_other_apis_take_the_field(server: Server) -> None:
    def chat(**more: Any) -> str:
        body = {"messages": [{"role": "user", "content": "x = 1"}], "max_tokens": 12}
        done = server.post("/v1/chat/completions", **body, temperature=0, **more)
        found: str = done["choices"][0]["message"]["content"]
        return found

    assert chat(lora=CHOICES[0]) != chat(lora=CHOICES[3])
    done = server.post("/v1/completions", **TEXT, lora=CHOICES[2], max_tokens=16)
    assert done["choices"][0]["text"] == text(server, lora=CHOICES[2])


def test_settings_name_the_scales(server: Server) -> None:
    shown = server.post("/completion", **TEXT, lora=CHOICES[2])["generation_settings"]["lora"]
    assert shown == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 1.0}]


def test_scales_are_changed_for_all(server: Server) -> None:
    wanted = text(server, lora=CHOICES[3])
    kept = text(server, lora=CHOICES[1])
    try:
        assert server.request("POST", "/lora-adapters", CHOICES[3])[:2] == (200, {"success": True})
        assert [each["scale"] for each in server.get("/lora-adapters")] == [0.25, -0.75]
        assert text(server) == wanted
        assert text(server, lora=CHOICES[1]) == kept
        server.request("POST", "/lora-adapters", [])
        assert text(server) == text(server, lora=CHOICES[0])
    finally:
        server.request("POST", "/lora-adapters", CHOICES[1])


@pytest.mark.parametrize(
    "body",
    [
        {"id": 0, "scale": 1.0}, [{"id": 2, "scale": 1.0}], [{"id": -1, "scale": 1.0}],
        [{"id": 0}], [{"id": 0, "scale": "much"}], [[0, 1.0]], b"[", b"", "x",
        [{"id": 0, "scale": 1e39}],
    ],
)  # fmt: skip
def test_what_cannot_be_changed(server: Server, body: Any) -> None:
    status, error = server.refused("/lora-adapters", body)
    assert status == 400
    assert error["message"]
    assert [each["scale"] for each in server.get("/lora-adapters")] == [1.0, 0.0]


@pytest.mark.parametrize("lora", [[{"id": 7, "scale": 1}], [{"id": 0}], {"id": 0}, "first.gguf"])
def test_wrong_fields(server: Server, lora: Any) -> None:
    status, error = server.refused("/completion", TEXT | {"lora": lora})
    assert status == 400
    assert error["param"].startswith("lora")


def test_a_server_without_any() -> None:
    with running(nano_server()) as plain:
        for path, body in (("/completion", TEXT | {"lora": CHOICES[1]}),
                           ("/lora-adapters", CHOICES[1])):  # fmt: skip
            status, error = plain.refused(path, body)
            assert status == 400
            assert "--lora" in error["message"]


def test_slots_keep_the_scales_of_their_text(server: Server) -> None:
    """A saved text is of use to requests with the scales that it was written with."""
    prompt = server.post("/tokenize", content=TEXT["prompt"], add_special=True)["tokens"]
    written = server.post(
        "/completion", **TEXT | {"prompt": prompt, "return_tokens": True}, id_slot=2
    )["tokens"]
    server.post("/slots/2?action=save", filename="adapted.bin")
    erased = server.post("/slots/2?action=erase")["n_erased"]
    assert erased > 0
    assert server.post("/slots/3?action=restore", filename="adapted.bin")["n_restored"] == erased
    longer = TEXT | {"prompt": prompt + written}
    assert server.post("/completion", **longer, lora=CHOICES[0])["timings"]["cache_n"] == 0
    assert server.post("/completion", **longer)["timings"]["cache_n"] > 0
    server.request("POST", "/lora-adapters", CHOICES[2])
    try:
        status, error = server.refused("/slots/3?action=restore", {"filename": "adapted.bin"})
        assert (status, "another model" in error["message"]) == (400, True)
    finally:
        server.request("POST", "/lora-adapters", CHOICES[1])


def test_scales_outlive_a_sleep(files: list[Path]) -> None:
    with running(nano_server(n=1, how={"lora": files}, sleep_s=0.2)) as server:
        server.request("POST", "/lora-adapters", CHOICES[2])
        wanted = text(server, lora=CHOICES[2])
        wait_until(lambda: server.worker.state == SLEEPING and server.worker.loaded is None)
        assert text(server) == wanted


@pytest.mark.threads
def test_several_replicas() -> None:
    with replicated() as server:
        status, error = server.refused("/lora-adapters", CHOICES[0])
        assert status == 501
        assert "field lora" in error["message"]
