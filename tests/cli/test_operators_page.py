"""`docs/operate.md`: its files are taken from the page and tried."""

from __future__ import annotations

import http.client
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.serving import nano_server, running, wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
SPEC = [sys.executable, "-c", "from nextn.cli.start import main; main()"]
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
OPENSSL, SYSTEMD = shutil.which("openssl"), shutil.which("systemd-analyze")
KEY = {"Authorization": "Bearer secret", "Host": "llm.example.com"}


def block(language: str) -> str:
    (found,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def commands() -> list[list[str]]:
    """All command lines of `spec`, of the files and of what is typed."""
    text = PAGE.replace("\\\n", " ").replace('", "', " ").replace('["', " ").replace('"]', " ")
    lines = re.findall(r"(?<=[ /$])(spec (?:serve|warmup) [^`\n#&]*)", text)
    return [shlex.split(line) for line in lines]


def known_flags(command: str) -> set[str]:
    done = subprocess.run(
        [*SPEC, command, "--help"], capture_output=True, text=True, check=True, timeout=120
    )
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", done.stdout))


def test_all_flags_exist() -> None:
    found = commands()
    assert {words[1] for words in found} == {"serve", "warmup"}
    assert len(found) >= 6
    mentioned = set(re.findall(r"(?<=`)(-[\w-]+)(?=[ `])", PAGE))
    for command in ("serve", "warmup"):
        known = known_flags(command)
        flags = {word for words in found if words[1] == command for word in words if word[0] == "-"}
        assert len(flags) > 2 or command == "warmup"
        assert not flags - known, flags - known
        mentioned -= known
    assert mentioned <= {"--stop-timeout"}, "of docker, and of nothing else"


@pytest.mark.skipif(SYSTEMD is None, reason="needs systemd")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    """Only the program and the users are not there."""
    unit = tmp_path / "spec.service"
    unit.write_text(block("ini").replace("/opt/spec/bin/spec", "/bin/true"))
    done = subprocess.run(
        [str(SYSTEMD), "verify", "--man=no", str(unit)], capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert not [line for line in done.stderr.splitlines() if "spec.service" in line], done.stderr
    unit.write_text(unit.read_text().replace("Type=exec", "Type=sometimes\nNoSuchWord=1"))
    done = subprocess.run(
        [str(SYSTEMD), "verify", "--man=no", str(unit)], capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert "NoSuchWord" in done.stderr


@contextmanager
def nginx(folder: Path, upstream: Path) -> Iterator[int]:
    """The file of the page, with a certificate, a port and a socket of this test."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    certificate, key = folder / "c.pem", folder / "k.pem"
    subprocess.run(
        [str(OPENSSL), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj",
         "/CN=llm.example.com", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    site = block("nginx")
    for ours, theirs in (
        ("/run/spec/spec.sock", str(upstream)),
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("/etc/ssl/llm.example.com.pem", str(certificate)),
        ("/etc/ssl/private/llm.example.com.key", str(key)),
    ):
        assert ours in site
        site = site.replace(ours, theirs)
    (folder / "site.conf").write_text(site)
    temporary = "".join(
        f"{name}_temp_path {folder / name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # Its workers would be another user, whom the socket is closed to.
    user = "user root;\n" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{user}pid {folder}/pid;\nerror_log {folder}/errors;\ndaemon off;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}include {folder}/site.conf;\n}}\n"
    )
    process = subprocess.Popen(
        [str(NGINX), "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.PIPE
    )
    try:
        wait_until(lambda: process.poll() is not None or is_open(port))
        assert process.poll() is None, process.stderr and process.stderr.read()
        yield port
    finally:
        process.terminate()
        process.communicate()


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def connect(port: int) -> http.client.HTTPSConnection:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=120, context=context)


def ask(port: int, **body: object) -> http.client.HTTPResponse:
    client = connect(port)
    client.request("POST", "/completion", json.dumps(body), KEY)
    return client.getresponse()


@pytest.mark.skipif(None in (NGINX, OPENSSL), reason="needs nginx and openssl")
def test_requests_pass_through_nginx(tmp_path: Path) -> None:
    path = tmp_path / "spec.sock"
    server = nano_server(hosts=(str(path),), api_keys=("secret",))
    with running(server), nginx(tmp_path, path) as port:
        done = ask(port, prompt="a = ", n_predict=5)
        assert (done.status, json.loads(done.read())["tokens_predicted"]) == (200, 5)
        assert re.fullmatch(r"[0-9a-f]{32}", done.getheader("X-Request-Id") or "")
        # A token passes while the text is written, and a client that leaves frees its slot.
        stream = ask(port, prompt="a = ", n_predict=100_000, ignore_eos=True, stream=True)
        assert stream.readline().startswith(b"data: ")
        assert server.worker.n_open == 1
        stream.close()
        wait_until(lambda: server.worker.n_open == 0)
        assert ask(port, prompt="a" * (17 << 20)).status == 413  # by nginx
        client = connect(port)
        client.request("GET", "/health")
        assert client.getresponse().status == 200
