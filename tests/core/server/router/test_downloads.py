"""Models that a running server downloads from the hub: llama-server's endpoints, and Ollama's."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ollama
import pytest
from huggingface_hub import constants
from support.hub import Hold, Hub, hub_alone
from support.routed import RouterServer, Source, later, router
from support.serving import HANGS_S, wait_until

from nextn.core import nano
from nextn.core.hub.hub_models import HubModel
from nextn.core.server.router.downloads import HubAccess

MODEL = "owner/name:Q8_0"
PROMPT: dict[str, Any] = {"prompt": "def add(a, b):\n", "n_predict": 5, "temperature": 0}
FILE = nano.path().read_bytes()
HALF = len(FILE) // 2


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "nano-Q8_0.gguf").write_bytes(FILE)
    with hub_alone(folder, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def server(hub: Hub) -> Iterator[RouterServer]:
    with router(Source("a"), access=HubAccess()) as made:
        yield made


@pytest.fixture
def hold(hub: Hub) -> Iterator[Hold]:
    """The hub sends the first half of the file, and the rest when it may."""
    made = hub.faults["hold"] = Hold(HALF)
    yield made
    made.may_go_on.set()


class EventStream:
    """`/models/sse`, read in a thread. It is open when this returns."""

    def __init__(self, server: RouterServer) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANGS_S)
        self._connection.request("GET", "/models/sse")
        self._response = self._connection.getresponse()
        assert self._response.headers["Content-Type"] == "text/event-stream"
        self.events: list[dict[str, Any]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._response:
            if line.startswith(b"data: "):
                self.events.append(json.loads(line[6:]))

    def of(self, model: str) -> list[Any]:
        """Names of the events, and the status where that is one."""
        return [
            each["data"]["status"] if each["event"] == "model_status" else each["event"]
            for each in list(self.events)
            if each["model"] == model
        ]

    def wait_for(self, model: str, what: str) -> None:
        wait_until(lambda: what in self.of(model))

    def join(self) -> None:
        self._thread.join(HANGS_S)
        assert not self._thread.is_alive()


def status_of(server: RouterServer, model: str = MODEL) -> dict[str, Any] | None:
    listed = {each["id"]: each["status"] for each in server.get("/models")["data"]}
    return listed.get(model)


def wait_for_half(server: RouterServer) -> str:
    """Returns the address of the file."""

    def done() -> int:
        found = status_of(server)
        assert found is not None
        return sum(each["done"] for each in found["progress"].values())

    wait_until(lambda: done() > 0)
    found = status_of(server)
    assert found is not None
    assert found["value"] == "downloading"
    ((url, progress),) = found["progress"].items()
    assert progress["total"] == len(FILE)
    assert progress["done"] < len(FILE)
    return str(url)


def test_a_model_is_downloaded_used_and_removed(server: RouterServer, hub: Hub) -> None:
    stream = EventStream(server)
    assert server.post("/models", model=MODEL) == {"success": True}
    stream.wait_for(MODEL, "download_finished")
    events = stream.of(MODEL)
    assert events[0] == "downloading"
    assert set(events[1:-1]) == {"download_progress"}
    progress = [each for each in stream.events if each["event"] == "download_progress"]
    ((url, last),) = progress[-1]["data"].items()
    assert url.startswith(hub.endpoint)
    assert last == {"done": len(FILE), "total": len(FILE)}
    (listed,) = (each for each in server.get("/models")["data"] if each["id"] == MODEL)
    assert (listed["source"], listed["can_remove"]) == ("cache", True)
    assert listed["status"]["value"] == "unloaded"
    text = server.post("/completion", model="a", **PROMPT)["content"]
    for name in (MODEL, "owner/name", "hf.co/owner/name:q8_0"):
        assert server.post("/completion", model=name, **PROMPT)["content"] == text
    states = [each for each in stream.of(MODEL) if each.startswith("load")]
    assert (states[0], set(states[1:-1]), states[-1]) == ("loading", {"loading"}, "loaded")
    assert server.request("DELETE", f"/models?model={MODEL}")[1] == {"success": True}
    stream.wait_for(MODEL, "model_remove")
    assert stream.of(MODEL)[-3:] == ["unloading", "unloaded", "model_remove"]
    assert status_of(server) is None
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.gguf"))
    assert server.refused("/completion", {"model": MODEL, **PROMPT})[0] == 400


def test_the_progress_of_a_load(server: RouterServer) -> None:
    stream = EventStream(server)
    server.load("a")
    stream.wait_for("a", "loaded")
    *loading, loaded = (each["data"] for each in stream.events)
    progress = [each["progress"] for each in loading if "progress" in each]
    assert {(*each["stages"], each["current"]) for each in progress} == {("text_model",) * 2}
    values = [each["value"] for each in progress]
    assert values == sorted(values)
    assert values[-1] == 1.0
    assert len(values) > 2
    assert loaded["info"]["meta"]["n_ctx"] == 512


def test_a_download_takes_no_models_place_and_others_go_on(hub: Hub, hold: Hold) -> None:
    with router(Source("a"), access=HubAccess(), n_models=1) as server:
        server.load("a")
        server.post("/models", model=MODEL)
        assert hold.has_come.wait(HANGS_S)
        url = wait_for_half(server)
        assert url.endswith("/nano-Q8_0.gguf")
        assert server.post("/completion", model="a", **PROMPT)["content"]
        status, error = server.refused("/completion", {"model": MODEL, **PROMPT})
        assert (status, error["message"]) == (400, f"model '{MODEL}' not found")
        status, error = server.refused("/models", {"model": MODEL})
        assert (status, error["message"]) == (400, f"model '{MODEL}' is being downloaded already")
        hold.may_go_on.set()
        wait_until(lambda: server.status()[MODEL] == "unloaded")
        assert server.loaded() == {"a"}
        status, error = server.refused("/models", {"model": MODEL})
        assert (status, error["message"]) == (400, f"model '{MODEL}' already exists")


def test_unloading_ends_a_download_and_another_one_goes_on_from_there(
    server: RouterServer, hub: Hub, hold: Hold
) -> None:
    stream = EventStream(server)
    server.post("/models", model=MODEL)
    wait_for_half(server)
    assert server.post("/models/unload", model=MODEL) == {"success": True}
    assert status_of(server) is None
    stream.wait_for(MODEL, "download_failed")
    assert stream.events[-1]["data"] == {"error": "the download was cancelled"}
    del hub.faults["hold"]
    hub.requests.clear()
    hold.may_go_on.set()
    wait_until(lambda: server.serving.downloads.have_ended)
    server.post("/models", model=MODEL)
    stream.wait_for(MODEL, "download_finished")
    (sent,) = [headers["Range"] for path, headers in hub.requests if "/store/" in path]
    assert sent != f"bytes=0-{len(FILE) - 1}"
    (path,) = Path(constants.HF_HUB_CACHE).rglob("nano-Q8_0.gguf")
    assert path.read_bytes() == FILE


def test_removing_ends_a_download_and_leaves_nothing(
    server: RouterServer, hub: Hub, hold: Hold
) -> None:
    server.post("/models", model=MODEL)
    wait_for_half(server)
    assert server.request("DELETE", f"/models?model={MODEL}")[0] == 200
    assert status_of(server) is None
    hold.may_go_on.set()
    wait_until(lambda: server.serving.downloads.have_ended)
    assert not [path for path in Path(constants.HF_HUB_CACHE).rglob("blobs/*") if path.is_file()]


def test_a_model_that_writes_is_removed_when_it_has_ended(server: RouterServer) -> None:
    """Also if the list of models is read again meanwhile."""
    ollama.Client(server.url).pull(MODEL)
    body = {"model": MODEL, "stream": True, "ignore_eos": True, **PROMPT, "n_predict": 300}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANGS_S)
    connection.request("POST", "/completion", json.dumps(body))
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    thread, found = later(lambda: server.request("DELETE", f"/models?model={MODEL}")[0])
    wait_until(lambda: server.model(MODEL).is_deleted)
    server.get("/models?reload=1")
    last = [line for line in response.read().splitlines() if line.startswith(b"data: ")][-1]
    assert json.loads(last[6:])["tokens_predicted"] == 300
    thread.join(HANGS_S)
    assert found == [200]
    assert status_of(server) is None


def test_the_server_ends_while_it_downloads(hub: Hub, hold: Hold) -> None:
    with router(Source("a"), access=HubAccess()) as server:
        stream = EventStream(server)
        server.post("/models", model=MODEL)
        wait_for_half(server)
        loop = server.serving.loop
        assert loop is not None
        loop.call_soon_threadsafe(server.serving.stop)
        stream.join()
        server.thread.join(HANGS_S)
        assert not server.thread.is_alive()
        hold.may_go_on.set()
    assert server.code == 0


REFUSED: list[tuple[dict[str, Any], Any, int, str]] = [
    ({}, {"model": "owner/other"}, 400, "the hub has no owner/other, or it is private"),
    ({}, {"model": "owner/name:Q2_K"}, 400, "owner/name has no file of Q2_K; it has 'Q8_0'"),
    ({}, {"model": "name"}, 400, "model must be like owner/name or owner/name:Q4_K_M, got 'name'"),
    ({}, {"model": "a"}, 400, "model 'a' already exists"),
    ({}, {}, 400, "model must be a non-empty string"),
    ({}, {"model": 5}, 400, "model must be a string"),
    ({"gated": 403}, {"model": MODEL}, 400, "owner/name is gated: accept its terms"),
    ({"status": 500}, {"model": MODEL}, 400, "owner/name cannot be downloaded: the hub answers"),
]


@pytest.mark.parametrize(("faults", "body", "status", "said"), REFUSED)
def test_what_cannot_be_downloaded_is_refused_with_one_line(
    server: RouterServer, hub: Hub, faults: dict[str, Any], body: Any, status: int, said: str
) -> None:
    hub.faults.update(faults)
    found, error = server.refused("/models", body)
    assert found == status
    assert error["message"].startswith(said)
    assert "\n" not in error["message"]
    assert server.status() == {"a": "unloaded"}


def test_a_hub_that_cannot_be_reached(
    server: RouterServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    status, error = server.refused("/models", {"model": MODEL})
    assert (status, error["type"]) == (503, "unavailable_error")
    assert error["message"].startswith("the hub cannot be reached (")


def test_a_disk_without_room(server: RouterServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(9, 9, 0))
    status, error = server.refused("/models", {"model": MODEL})
    assert status == 500
    assert "has 0 MB free, 8 MB are to be downloaded into it: make room" in error["message"]


def test_a_cache_that_is_no_folder(
    server: RouterServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file"))
    status, error = server.refused("/models", {"model": MODEL})
    assert (status, error["type"]) == (500, "server_error")
    assert error["message"] == f"'{tmp_path / 'file'}': File exists"


def test_only_so_many_are_downloaded_at_once(server: RouterServer, hub: Hub, hold: Hold) -> None:
    kinds = ["Q8_0", "Q4_0", "Q5_0", "Q6_K", "F16"]
    hub.files = {f"nano-{kind}.gguf": FILE + kind.encode() for kind in kinds}
    for kind in kinds[:4]:
        server.post("/models", model=f"owner/name:{kind}")
    status, error = server.refused("/models", {"model": "owner/name:F16"})
    assert (status, error["message"]) == (503, "4 models are being downloaded already")
    hold.may_go_on.set()
    wait_until(lambda: len(server.status()) == 5)
    wait_until(lambda: "downloading" not in server.status().values())
    server.post("/models", model="owner/name:F16")
    wait_until(lambda: server.status().get("owner/name:F16") == "unloaded")


def test_a_download_that_fails_says_why(server: RouterServer, hub: Hub) -> None:
    stream = EventStream(server)
    listing = hub.listing()
    hub.files["nano-Q8_0.gguf"] = FILE[:-1] + bytes([FILE[-1] ^ 1])
    hub.listing = lambda: listing  # type: ignore[method-assign]
    server.post("/models", model=MODEL)
    stream.wait_for(MODEL, "download_failed")
    assert "what arrived has another sha256" in stream.events[-1]["data"]["error"]
    with pytest.raises(ollama.ResponseError, match="what arrived has another sha256"):
        list(ollama.Client(server.url).pull(MODEL, stream=True))
    with pytest.raises(ollama.ResponseError, match="what arrived has another sha256"):
        ollama.Client(server.url).pull(MODEL)
    assert server.status() == {"a": "unloaded"}


@pytest.mark.parametrize(
    ("access", "status", "said"),
    [
        (HubAccess("no: --no-models-download"), 403, "no: --no-models-download"),
        (HubAccess(pattern=HubModel("", offline=True)), 503, "the network is not used"),
    ],
)
def test_a_server_that_does_not_download(
    hub: Hub, access: HubAccess, status: int, said: str
) -> None:
    with router(Source("a"), access=access) as server:
        for path in ("/models", "/api/pull"):
            found, value, _ = server.request("POST", path, {"model": MODEL})
            error = value["error"]
            assert found == status
            assert (error if path == "/api/pull" else error["message"]) == said
    assert not hub.requests


def test_models_that_are_not_of_the_cache_stay(server: RouterServer) -> None:
    status, value, _ = server.request("DELETE", "/models?model=a")
    assert status == 400
    assert value["error"]["message"] == ("model 'a' is not removable: it is not of the hub's cache")
    assert server.request("DELETE", "/models?model=x")[0] == 404
    assert server.request("DELETE", "/models")[0] == 400
    assert server.status() == {"a": "unloaded"}


def test_keys_guard_downloads(hub: Hub) -> None:
    with router(Source("a"), access=HubAccess(), more={"api_keys": ("k",)}) as server:
        for method, path in (
            ("POST", "/models"), ("DELETE", "/models?model=a"), ("GET", "/models/sse"),
            ("POST", "/api/pull"), ("DELETE", "/api/delete"),
        ):  # fmt: skip
            assert server.request(method, path, {"model": MODEL})[0] == 401
        assert not hub.requests


# Ollama's client


def test_ollamas_client_pulls_lists_shows_and_deletes(server: RouterServer) -> None:
    client = ollama.Client(server.url)
    lines = list(client.pull("hf.co/owner/name:Q8_0", stream=True))
    assert [lines[0].status, *(each.status for each in lines[-3:])] == [
        "pulling manifest", "verifying sha256 digest", "writing manifest", "success",
    ]  # fmt: skip
    progress = [each for each in lines if each.digest]
    assert (progress[-1].completed, progress[-1].total) == (len(FILE), len(FILE))
    assert progress[-1].digest is not None
    assert progress[-1].digest.startswith("sha256:")
    assert progress[-1].status == f"pulling {progress[-1].digest[7:19]}"
    assert {each.model for each in client.list().models} == {"a", MODEL}
    assert client.show("hf.co/owner/name:Q8_0").details is not None
    assert client.pull(MODEL).status == "success"  # again, in one piece
    assert client.delete("hf.co/owner/name:Q8_0").status == "success"
    assert {each.model for each in client.list().models} == {"a"}
    with pytest.raises(ollama.ResponseError, match="is not found") as caught:
        client.delete(MODEL)
    assert caught.value.status_code == 404


def test_a_model_of_the_servers_own_need_not_be_pulled(server: RouterServer, hub: Hub) -> None:
    assert ollama.Client(server.url).pull("a:latest").status == "success"
    assert not hub.requests


def test_without_a_network_what_is_in_the_cache_need_not_be_pulled(
    server: RouterServer, hub: Hub
) -> None:
    ollama.Client(server.url).pull(MODEL)
    access = HubAccess(pattern=HubModel("", offline=True))
    hub.requests.clear()
    with router(access=access) as offline:
        assert ollama.Client(offline.url).pull(MODEL).status == "success"
        with pytest.raises(ollama.ResponseError, match="the network is not used"):
            ollama.Client(offline.url).pull("owner/other")
    assert not hub.requests


def test_many_pulls_of_a_model_are_one_download(server: RouterServer, hub: Hub) -> None:
    with ThreadPoolExecutor(8) as pool:
        pulls = pool.map(lambda _: ollama.Client(server.url).pull(MODEL).status, range(8))
        assert set(pulls) == {"success"}
    sent = [headers["Range"] for path, headers in hub.requests if "/store/" in path]
    assert sent == [f"bytes=0-{len(FILE) - 1}"]


def test_names_of_ollamas_registry(server: RouterServer, hub: Hub) -> None:
    for streams in (True, False):
        with pytest.raises(ollama.ResponseError) as caught:
            list(ollama.Client(server.url).pull("llama3.2", stream=streams))
        assert caught.value.status_code == 400
        assert caught.value.error.startswith("'llama3.2' is a name of Ollama's registry")
        assert "give hf.co/OWNER/NAME:QUANT" in caught.value.error
    assert not hub.requests


def test_a_client_that_leaves_ends_its_pull_alone(server: RouterServer, hold: Hold) -> None:
    stream = EventStream(server)
    one, two = (iter(ollama.Client(server.url).pull(MODEL, stream=True)) for _ in range(2))
    assert next(one).status == "pulling manifest"
    assert next(two).status == "pulling manifest"
    one.close()  # type: ignore[attr-defined]
    wait_until(lambda: server.serving.downloads.running[MODEL].n_clients == 1)
    assert status_of(server) is not None
    two.close()  # type: ignore[attr-defined]
    stream.wait_for(MODEL, "download_failed")
    assert status_of(server) is None


def test_a_pull_that_joins_a_download_does_not_end_it(server: RouterServer, hold: Hold) -> None:
    server.post("/models", model=MODEL)
    thread, found = later(lambda: ollama.Client(server.url).pull(MODEL).status)
    wait_until(lambda: server.serving.downloads.running[MODEL].n_clients == 1)
    leaver = iter(ollama.Client(server.url).pull(MODEL, stream=True))
    next(leaver)
    leaver.close()  # type: ignore[attr-defined]
    hold.may_go_on.set()
    thread.join(HANGS_S)
    assert found == ["success"]
