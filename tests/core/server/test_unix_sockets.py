"""Servers behind Unix sockets: who may use the file, and when it is there."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from support.serving import nano_server, running, wait_until

from nextn.core.errors import ConfigError
from nextn.core.server.settings import ServerSettings
from nextn.core.server.sockets import open_socket, url_of
from nextn.core.server.unix_sockets import remove_socket_files, unix_path

TEXT = {"prompt": "a = ", "n_predict": 5, "temperature": 0}
# Probabilities of many tokens take long: it goes on while another client leaves.
LONG = TEXT | {"n_predict": 1500, "ignore_eos": True, "stream": True, "n_probs": 50}


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(self._path))


def send(path: Path, to: str, body: dict[str, Any]) -> http.client.HTTPResponse:
    connection = UnixConnection(path)
    connection.request("POST", to, json.dumps(body))
    return connection.getresponse()


def test_a_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "spec.sock"
    with caplog.at_level(logging.INFO), running(nano_server(hosts=(f"unix:{path}",))) as server:
        assert stat.filemode(path.stat().st_mode) == "srw-rw----"
        done = send(path, "/completion", TEXT)
        assert (done.status, len(json.loads(done.read())["content"]) > 0) == (200, True)
        # Each connection is a client of its own: one that leaves takes no other with it.
        streams = [send(path, "/completion", LONG) for _ in range(2)]
        assert all(stream.readline() for stream in streams)
        streams.pop(0).close()  # and with it the connection, which nothing else holds
        wait_until(lambda: server.worker.n_open == 1)
        assert b'"stop":true' in streams[0].read()
    assert not path.exists()
    fields = [record.fields for record in caplog.records if hasattr(record, "fields")]
    lines = [each for each in fields if "client" in each]
    assert sorted(each["end"] for each in lines) == ["left", "limit", "limit"]
    assert {each["client"] for each in lines} == {"unix:1", "unix:2", "unix:3"}


def test_a_file_that_a_server_has_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "spec.sock"
    open_socket(str(path), 0).close()
    assert path.exists()
    left = open_socket(str(path), 0)
    with pytest.raises(ConfigError, match="another server does; give another --host"):
        open_socket(str(path), 0)
    remove_socket_files(["127.0.0.1", str(path)])
    assert not path.exists()
    remove_socket_files([str(path)])  # it is gone already
    left.close()


def test_other_files_stay(tmp_path: Path) -> None:
    path = tmp_path / "notes.sock"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="it is a file, and no socket"):
        open_socket(str(path), 0)
    assert path.read_text() == "mine"
    for missing in (tmp_path / "none" / "x.sock", tmp_path / f"{'x' * 200}.sock"):
        with pytest.raises(ConfigError, match="cannot listen on "):
            open_socket(str(missing), 0)


@pytest.mark.parametrize(
    ("host", "path"),
    [
        ("/run/spec.sock", "/run/spec.sock"), ("spec.sock", "spec.sock"),
        ("unix:/run/spec", "/run/spec"), ("unix:///run/spec", "/run/spec"), ("unix:", None),
        ("127.0.0.1", None), ("::1", None),
    ],
)  # fmt: skip
def test_names(host: str, path: str | None) -> None:
    assert unix_path(host) == path
    if path is not None:
        assert url_of(host, 80) == f"unix:{path}"
        assert ServerSettings(hosts=(host,)).public_host is None
