"""`spec serve --host FILE.sock`, beside a port."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from pathlib import Path

HANGS_S = 120
SERVE = [sys.executable, "-c", "from nextn.cli.start import main; main()", "serve", "-m", "nano"]


def test_a_socket_and_a_port(tmp_path: Path) -> None:
    path = tmp_path / "spec.sock"
    command = [*SERVE, "--host", f"{path},127.0.0.1", "--port", "0", "--api-prefix", "/llm"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert f"ready      unix:{path}:/llm (" in line, line
        client = http.client.HTTPConnection("localhost", timeout=HANGS_S)
        client.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.sock.connect(str(path))
        client.request("GET", "/llm/health")
        assert client.getresponse().status == 200
        other = subprocess.run(
            [*SERVE, "--host", str(path)], capture_output=True, text=True, timeout=HANGS_S,
            check=False,
        )  # fmt: skip
        assert other.returncode == 1
        assert other.stderr == (
            f"spec: error: cannot listen on {path}: another server does; give another --host\n"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANGS_S) == 0
    assert not path.exists()
