"""What no command that writes a model may do: lose a file, leave half of one, or go where it should
not. The same for all of them.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import build_checkpoint

from nextn.cli.app import run
from nextn.core import nano
from nextn.core.gguf import writer
from nextn.core.gguf.atomic_write import atomic_write, remove_leftovers

Capture = pytest.CaptureFixture[str]
COMMANDS = {
    "attach": "attach trunk.gguf --from model.gguf -o OUT",
    "attach from a checkpoint": "attach bare.gguf --from checkpoint -o OUT",
    "extract": "extract model.gguf -o OUT",
    "detach": "detach model.gguf -o OUT",
    "merge": "merge set-00002-of-00005.gguf -o OUT",
    "split": "split model.gguf -o OUT --split-max-size 2M",
    "hf": "hf checkpoint -o OUT --type bf16",
    "hf quantised": "hf checkpoint -o OUT --type Q4_K_M",
    "quantize": "quantize model.gguf -o OUT --type f16",
}
INPUTS = {
    "attach": "model.gguf trunk.gguf",
    "attach from a checkpoint": "bare.gguf checkpoint/model.safetensors",
    "extract": "model.gguf",
    "detach": "model.gguf",
    "merge": "set-00001-of-00005.gguf set-00002-of-00005.gguf",
    "hf": "checkpoint/model.safetensors checkpoint/config.json",
    "hf quantised": "checkpoint/model.safetensors",
    "quantize": "model.gguf",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    os.chdir(folder)
    shutil.copy(nano.path(), "model.gguf")
    build_checkpoint("qwen35", folder / "checkpoint", mtp=True)
    for line in (
        "detach model.gguf -o trunk.gguf",
        "split model.gguf -o set --split-max-size 2M",
        "hf checkpoint -o bare.gguf --no-mtp",
    ):
        assert run(["convert", *line.split(), "-q"]) == 0
    assert Path("set-00005-of-00005.gguf").exists()
    return folder


@pytest.fixture(autouse=True)
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of outputs; that of the inputs has to stay as it is."""
    monkeypatch.chdir(made)
    before = contents(made)
    yield tmp_path
    assert contents(made) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def spec(command: str, out: Path | str, *flags: str) -> int:
    words = COMMANDS[command].replace("OUT", "|").split()
    return run(["convert", *(str(out) if word == "|" else word for word in words), *flags])


def one_line(capsys: Capture, *parts: str) -> None:
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if line.startswith("spec: error: ")]
    assert len(errors) == 1
    assert said.err.splitlines()[-1] == errors[0]
    assert said.out == ""
    assert all(part in errors[0] for part in parts), errors[0]


all_commands = pytest.mark.parametrize("command", COMMANDS)


@all_commands
def test_it_works_and_tells_the_same_things(command: str, place: Path, capsys: Capture) -> None:
    out = place / "out.gguf"
    assert spec(command, out, "--json") == 0
    said = capsys.readouterr()
    record = json.loads(said.out)
    paths = [Path(path) for path in record["output"]]
    assert sorted(place.iterdir()) == sorted(paths)
    assert record["bytes"] == sum(path.stat().st_size for path in paths)
    *_, done, then = said.err.splitlines()
    assert done.startswith(f"wrote {paths[0]}")
    assert then.startswith(("next: spec convert ", "next: spec generate "))


@all_commands
def test_what_is_there_stays_unless_forced(command: str, place: Path, capsys: Capture) -> None:
    out = place / "out.gguf"
    assert spec(command, out, "-q") == 0
    made = contents(place)
    for name in made:
        (place / name).write_bytes(b"precious")
    assert spec(command, out) == 1
    one_line(capsys, "exists already")
    assert set(contents(place).values()) == {b"precious"}
    assert spec(command, out, "--force", "-q") == 0
    assert contents(place) == made
    assert capsys.readouterr() == ("", "")


@contextmanager
def disk_of(n_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@all_commands
def test_a_disk_that_fills_up(command: str, place: Path, capsys: Capture) -> None:
    with disk_of(100_000):
        assert spec(command, place / "out.gguf") == 1
    one_line(capsys, "out", "cannot be written: File too large")
    assert not list(place.iterdir())


@all_commands
def test_a_disk_without_room(
    command: str, place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(place)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert spec(command, place / "out.gguf") == 1
    one_line(capsys, "MB free", "make room")
    assert not list(place.iterdir())


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@all_commands
def test_a_signal_midway(
    command: str, sent: signal.Signals, place: Path, capsys: Capture, monkeypatch: Any
) -> None:
    out = place / "out.gguf"
    out.write_bytes(b"precious")
    write: Callable[..., None] = writer._write_shard
    seen: list[Path] = []

    def then_stop(file: Any, head: Any, tensors: Any, alignment: Any, path: Any, _: Any) -> None:
        def report(_n_bytes: int) -> None:
            seen.extend(place.glob(".*.part"))
            signal.raise_signal(sent)

        write(file, head, tensors, alignment, path, report)

    monkeypatch.setattr(writer, "_write_shard", then_stop)
    if sent == signal.SIGINT:
        assert spec(command, out, "--force") == 130
    else:
        with pytest.raises(SystemExit, match="143"):
            spec(command, out, "--force")
    assert seen
    assert contents(place) == {"out.gguf": b"precious"}
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("command", ["quantize", "split", "hf"])
def test_what_a_kill_left_is_named_and_removed(
    command: str, place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next run for the same file; what another run writes meanwhile stays, and so do the
    files of other outputs."""
    out = place / "out.gguf"
    child = os.fork()
    if not child:

        def die(*_: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        monkeypatch.setattr(writer, "_write_shard", die)
        spec(command, out, "-q")
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    left = sorted(path.name for path in place.iterdir())
    assert left
    assert all(name.startswith(".out") and name.endswith(".part") for name in left)
    for name in (".other.gguf.0123456789abcdef.part", ".out.gguf.part"):
        (place / name).write_bytes(b"not ours")
    with atomic_write([out], overwrite=False):
        (written,) = {path.name for path in place.glob(".out.gguf.*.part")} - {*left}
        assert remove_leftovers(out) == [place / name for name in left]
        assert (place / written).exists()
    out.unlink()

    (place / left[0]).write_bytes(b"left")
    assert spec(command, out) == 0
    said = capsys.readouterr().err
    assert f"removed {place / left[0]}: a run that was killed had left it\n" in said
    assert [path.name for path in sorted(place.glob(".*"))] == [
        ".other.gguf.0123456789abcdef.part", ".out.gguf.part",
    ]  # fmt: skip


def test_in_place_keeps_mode_and_owner(
    made: Path, place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, owners = place / "model.gguf", list[tuple[int, int]]()
    shutil.copy(made / "trunk.gguf", target)
    target.chmod(0o640)
    found = target.stat()
    monkeypatch.setattr(os, "fchown", lambda _, uid, gid: owners.append((uid, gid)))
    words = ["--from", str(made / "model.gguf"), "--in-place", "--backup"]
    assert run(["convert", "attach", str(target), *words, "-q"]) == 0
    assert owners == [(found.st_uid, found.st_gid)]
    for name in ("model.gguf", "model.gguf.bak"):
        assert (place / name).stat().st_mode & 0o7777 == 0o640

    (place / "model.gguf.bak").unlink()
    monkeypatch.setattr(os, "geteuid", lambda: found.st_uid + 1)
    assert run(["convert", "attach", str(target), *words, "--replace"]) == 1
    one_line(capsys, "belongs to another user or group", "use -o")


@all_commands
def test_places_that_are_none(
    command: str, place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spec(command, place / "none" / "out.gguf") == 1
    one_line(capsys, "there is no folder")
    (place / "dir.gguf").mkdir()
    if not command.startswith("hf"):  # which puts a file into it
        assert spec(command, place / "dir.gguf") == 1
        one_line(capsys, "is a folder")
    closed = place / "closed"
    closed.mkdir(mode=0o555)
    if os.geteuid() == 0:  # who may write anywhere
        monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed)
    assert spec(command, closed / "out.gguf") == 1
    one_line(capsys, "cannot be written to")
    assert not list(closed.iterdir())


@all_commands
def test_a_link_is_not_followed_and_not_replaced(
    command: str, place: Path, capsys: Capture
) -> None:
    (place / "real").write_bytes(b"precious")
    (place / "out.gguf").symlink_to(place / "real")
    assert spec(command, place / "out.gguf", "--force") == 1
    one_line(capsys, "is a symbolic link")
    assert (place / "out.gguf").is_symlink()
    assert (place / "real").read_bytes() == b"precious"


@pytest.mark.parametrize("flags", [(), ("--force",)])
@pytest.mark.parametrize(
    ("command", "name"), [(key, name) for key, all in INPUTS.items() for name in all.split()]
)
def test_an_input_is_never_the_output(
    command: str, name: str, flags: tuple[str, ...], capsys: Capture
) -> None:
    assert spec(command, name, *flags) == 1
    one_line(capsys, "is the input itself")


@pytest.mark.parametrize(
    "line",
    [
        "split set-00001-of-00005.gguf -o set --split-max-size 3M",
        "quantize set-00003-of-00005.gguf -o set.gguf --type f16 --split-max-size 3M",
        "attach set-00003-of-00005.gguf --from model.gguf --replace -o set --split-max-size 3M",
    ],
)
def test_shards_do_not_replace_the_set_they_come_from(line: str, capsys: Capture) -> None:
    assert run(["convert", *line.split(), "--force"]) == 1
    one_line(capsys, "is one of its own shards")


# Checkpoints that are not what they should be ---------------------------------------------------

BAD = {
    "leads out": "outside of the folder",
    "absolute": "outside of the folder",
    "link": "leads out of",
    "pickle": "pickled weights",
    "huge header": "its header claims",
    "overlap": "overlaps another or leaves a gap",
}


def spoil(folder: Path, how: str) -> None:
    weights, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if how in ("leads out", "absolute"):
        name = "../../model.safetensors" if how == "leads out" else "/etc/model.safetensors"
        index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    elif how == "link":
        weights.rename(folder.parent / "elsewhere.safetensors")
        weights.symlink_to(folder.parent / "elsewhere.safetensors")
    elif how == "pickle":
        weights.rename(folder / "pytorch_model.bin")
    else:
        data = bytearray(weights.read_bytes())
        length = int.from_bytes(data[:8], "little")
        if how == "huge header":
            data[:8] = (len(data) * 2).to_bytes(8, "little")
        else:
            header = json.loads(data[8 : 8 + length])
            names = [name for name in header if name != "__metadata__"]
            first, last = header[names[0]]["data_offsets"]
            other = next(n for n in names[1:] if header[n]["shape"] == header[names[0]]["shape"])
            header[other]["data_offsets"] = [first, last]
            new = json.dumps(header, separators=(",", ":")).encode()
            assert len(new) <= length
            data[8 : 8 + length] = new.ljust(length)
        weights.write_bytes(data)


@pytest.mark.parametrize("how", BAD)
@pytest.mark.parametrize(
    "line", ["hf bad -o out.gguf", "attach BARE --from bad -o out.gguf", "inspect bad"]
)
def test_bad_checkpoints(
    line: str, how: str, made: Path, place: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(made / "checkpoint", place / "bad")
    spoil(place / "bad", how)
    monkeypatch.chdir(place)
    assert run(["convert", *line.replace("BARE", str(made / "bare.gguf")).split()]) == 1
    one_line(capsys, BAD[how])
    assert not (place / "out.gguf").exists()
