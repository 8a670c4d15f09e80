"""`spec convert attach`, extract, detach, merge and split as people use them."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.every_family import EVERY_WITH_MTP, build_family
from support.head_files import LAYOUTS, family_file

from nextn.cli.app import run
from nextn.cli.convert.writing import drafting_command
from nextn.core import nano

Run = Callable[..., subprocess.CompletedProcess[str]]
Capture = pytest.CaptureFixture[str]
NANO = str(nano.path())


@pytest.fixture
def trunk(tmp_path: Path) -> Path:
    path = tmp_path / "trunk.gguf"
    assert run(["convert", "detach", NANO, "-o", str(path), "-q"]) == 0
    return path


def test_there_and_back(real_spec: Run, tmp_path: Path, trunk: Path) -> None:
    head, whole = tmp_path / "mtp.gguf", tmp_path / "whole.gguf"
    made = real_spec("convert", "extract", NANO, "-o", str(head), "--json")
    assert json.loads(made.stdout)["heads"] == 1
    assert made.stderr.startswith(f"wrote {head}: 1 MTP head, ")
    assert f"spec generate -m {NANO} -md {head} --spec-type mtp" in made.stderr
    done = real_spec("convert", "attach", str(trunk), "--from", str(head), "-o", str(whole))
    assert done.stdout == ""
    assert done.stderr.count("\n") == 2
    assert f"wrote {whole}: 1 MTP head attached, 15 tensors (7 F32, 8 Q8_0), " in done.stderr
    assert f"next: spec generate -m {whole} --spec-type mtp" in done.stderr
    assert whole.read_bytes() == nano.path().read_bytes()


@pytest.mark.slow
def test_what_it_says_to_try_works(real_spec: Run, tmp_path: Path, trunk: Path) -> None:
    whole, drafting = tmp_path / "whole.gguf", ("--spec-type", "mtp", "--spec-fixed")
    flags = ("-n", "24", "--temp", "0", "--json", "def add(a, b):")
    real_spec("convert", "attach", str(trunk), "--from", NANO, "-o", str(whole))
    answer = json.loads(real_spec("generate", "-m", str(whole), *drafting, *flags).stdout)
    assert answer["by_source"]["mtp"]["accepted"] > 0
    plain = json.loads(real_spec("generate", "-m", str(trunk), *flags).stdout)
    assert answer["text"] == plain["text"]
    head = str(tmp_path / "mtp.gguf")
    real_spec("convert", "extract", NANO, "-o", head)
    given = real_spec("generate", "-m", str(trunk), "-md", head, *drafting, *flags)
    assert json.loads(given.stdout)["by_source"]["mtp"]["accepted"] > 0


@pytest.mark.parametrize("name", EVERY_WITH_MTP)
def test_the_next_command_drafts(name: str, tmp_path: Path, capsys: Capture) -> None:
    """Of every family whose heads are run here, as it is printed."""
    path = build_family(name, tmp_path, mtp=True).path
    head = tmp_path / "head.gguf"
    assert run(["convert", "extract", str(path), "-o", str(head)]) == 0
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("next: ")]
    _, *words = shlex.split(line.removeprefix("next: "))
    assert words[:5] == ["generate", "-m", str(path), "-md", str(head)]
    assert run([*words, "-n", "8", "--temp", "0", "--spec-fixed", "--json", "--ignore-eos"]) == 0
    assert json.loads(capsys.readouterr().out)["by_source"]["mtp"]["drafted"] > 0


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("hy_v3", "llama-server -m FILE --spec-type draft-mtp"),
        ("bailingmoe3", "llama-server -m FILE --spec-type draft-mtp"),
        ("exaone-moe", "spec generate -m FILE --spec-type mtp 'Once upon a time'"),
        ("exaone4", "spec convert inspect FILE"),
        ("dots3note", "spec convert inspect FILE"),
    ],
)
def test_the_next_command_is_true_for_the_family(name: str, command: str, tmp_path: Path) -> None:
    """Here, in llama.cpp where only that has a graph for the head, or nowhere."""
    path = tmp_path / "m.gguf"
    if name in LAYOUTS:
        family_file(path, name)
    else:  # which nothing runs: it is enough that it is one

        def rename(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
            for key in list(keys):
                keys[key.replace("glm4moe.", f"{name}.")] = keys.pop(key)
            keys["general.architecture"] = name

        family_file(path, "glm4moe", rename)
    assert drafting_command(path) == command.replace("FILE", str(path))


def test_shards(real_spec_here: Run, tmp_path: Path) -> None:
    made = real_spec_here(
        "convert", "split", NANO, "-o", str(tmp_path / "m"), "--split-max-size", "2M", "--json"
    )
    names = json.loads(made.stdout)["output"]
    assert len(names) > 3
    assert Path(names[0]).name == f"m-00001-of-{len(names):05d}.gguf"
    assert f"and {len(names) - 1} more: {len(names)} shards, " in made.stderr
    merged = tmp_path / "merged.gguf"
    done = real_spec_here("convert", "merge", *names, "-o", str(merged), "--json")
    assert json.loads(done.stdout)["merged_shards"] == len(names)
    assert merged.read_bytes() == nano.path().read_bytes()


def test_in_place(real_spec_here: Run, trunk: Path, tmp_path: Path) -> None:
    before = trunk.read_bytes()
    done = real_spec_here(
        "convert", "attach", str(trunk), "--from", NANO, "--in-place", "--backup", "--json"
    )
    assert json.loads(done.stdout)["backup"] == f"{trunk}.bak"
    assert f"the old file is {trunk}.bak" in done.stderr
    assert trunk.read_bytes() == nano.path().read_bytes()
    assert (tmp_path / "trunk.gguf.bak").read_bytes() == before


def test_quiet_says_nothing(real_spec_here: Run, trunk: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "o.gguf")
    done = real_spec_here("convert", "attach", str(trunk), "--from", NANO, "-o", out, "-q")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FAULTS = [
    ("attach T --from N", 2, "where to? Give --output OUT, or --in-place --backup"),
    ("attach T --from N -o O --in-place", 2, "where to?"),
    ("attach T --from N --in-place", 2, "--in-place needs --backup"),
    ("attach T --from N -o O --backup", 2, "--backup is for --in-place"),
    ("attach T --from N --in-place --backup --split-max-size 2G", 2, "use it with --output"),
    ("attach T --from N -o O --type q9", 2, "--type: 'q9' is not a type for a head (known: keep"),
    ("attach T --from N -o O --tensor-type x", 2, "is not NAME=TYPE, as in ffn_down=q6_k"),
    ("attach T --from N -o O --split-max-size big", 2, "--split-max-size: 'big' is not a size"),
    ("attach T -o O", 2, "missing option '--from'"),
    ("attach T --from nowhere -o O", 1, "nowhere: no such file or folder (--from takes"),
    ("attach nowhere --from N -o O", 1, "nowhere: cannot be read: No such file"),
    ("attach T --from D -o O", 1, "has no config.json: not a checkpoint folder"),
    ("attach T --from T -o O", 1, "has no MTP head: no blk.N.nextn.eh_proj.weight"),
    ("attach N --from N -o O", 1, "has 1 MTP head(s) already; --replace takes them out"),
    ("attach T --from N -o T", 1, "is the input itself; give another name"),
    ("attach T --from N -o N --force", 1, "is the input itself; give another name"),
    ("attach T --from N -o D", 1, "is a folder; give the name of a file"),
    ("attach T --from N -o nowhere/o.gguf", 1, "there is no folder nowhere"),
    ("detach T -o O", 1, "has no MTP head (no blk."),
    ("detach N", 2, "missing option '--output'"),
    ("extract T", 1, "has no MTP head"),
    ("merge N -o O", 1, "is a whole file: there is nothing to merge"),
    ("split N -o O --split-max-size 1T", 1, "which fit into one shard"),
    ("split N -o O", 2, "missing option '--split-max-size'"),
    ("attach T --form N -o O", 2, "no such option --form (did you mean --from?)"),
]


@pytest.mark.parametrize(("line", "code", "complaint"), FAULTS)
def test_one_clear_line(
    line: str,
    code: int,
    complaint: str,
    trunk: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    words = {"T": str(trunk), "N": NANO, "D": str(tmp_path), "O": str(tmp_path / "out.gguf")}
    got = run(["convert", *(words.get(word, word) for word in line.split())])
    said = capsys.readouterr()
    assert (got, said.out) == (code, "")
    assert complaint in said.err
    assert said.err.startswith("spec: error: ")
    assert said.err.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


SLOW = """
import time
import nextn.core.gguf.ranges as ranges
copy = ranges._copy_in_kernel
def slowly(*where):
    time.sleep(0.05)
    return copy(*where)
ranges._copy_in_kernel = slowly
from nextn.cli.start import main
main()
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_being_stopped_leaves_nothing(sent: signal.Signals, code: int, tmp_path: Path) -> None:
    out = tmp_path / "o.gguf"
    out.write_bytes(b"precious")
    command = [sys.executable, "-c", SLOW, "convert", "detach", NANO, "-o", str(out), "--force"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob(".*.part")) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert list(tmp_path.glob(".*.part"))
        process.send_signal(sent)
        _, said = process.communicate(timeout=120)
    assert process.returncode == code
    assert "Traceback" not in said
    assert list(tmp_path.iterdir()) == [out]
    assert out.read_bytes() == b"precious"


@pytest.mark.parametrize("command", ["attach", "extract", "detach", "merge", "split"])
def test_help_shows_an_example(command: str, real_spec_here: Run) -> None:
    page = real_spec_here("convert", command, "--help").stdout
    assert f"\n  spec convert {command} " in page
