"""`spec warmup`, and what the first run of a file says about compiling."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nextn.cli.app import run
from nextn.core.backend import cuda
from nextn.cuda_kernels.cache import CubinCache, Entry
from nextn.cuda_kernels.compile import nvrtc_problem

Run = Callable[..., subprocess.CompletedProcess[str]]
Capture = pytest.CaptureFixture[str]
COMPILING = [["compiling 2 kernels", 0.0], ["compiling 2 kernels", 0.5], ["compiling 2 kernels", 1]]


def test_a_first_run_says_once_that_it_compiles(spec: Run) -> None:
    script = {"compiling": [*COMPILING, ["compiling 5 kernels", 0.0], ["compiling 5 kernels", 1]]}
    done = spec("generate", "-m", "m.gguf", "-s", "1", "hi", script=script)
    assert done.stderr.startswith(
        "compiling 2 kernels, once for this file\n"
        "compiling 5 kernels, once for this file\n"
        "loaded     12 ms\n"
    )
    quiet = spec("generate", "-m", "m.gguf", "-q", "hi", script=script)
    assert (quiet.stdout, quiet.stderr) == ("Hello world", "")


def test_warmup_of_a_device_without_kernels(spec: Run) -> None:
    done = spec("warmup", "m.gguf", "--device", "torch")
    line = "nothing to compile: --device torch has its kernels ready\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, line, "")


@pytest.mark.skipif(nvrtc_problem() is not None, reason="NVRTC is not installed")
def test_warmup_for_a_gpu_that_is_not_there(
    tiny: Callable[..., Any], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEC_CACHE_DIR", str(tmp_path))
    command = ["warmup", str(tiny("qwen3").path), "--device", "cuda", "--arch", "80"]
    assert run(command) == 0
    shown = capsys.readouterr()
    kernels = list((tmp_path / "cubins").glob("*-sm80-*.cubin"))
    where = re.escape(str(tmp_path / "cubins"))
    found = re.fullmatch(
        rf"sm_80: compiled (\d+) kernels in \d+\.\d s, kept in {where}\n", shown.out
    )
    assert found is not None
    assert int(found[1]) == len(kernels) > 5
    assert run(command) == 0
    assert capsys.readouterr().out == (
        f"sm_80: nothing to compile: all kernels are in {tmp_path / 'cubins'}\n"
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--arch", "90"], "--arch is for --device cuda"),
        (["--device", "cuda", "--arch", "h100"], "a GPU of compute capability 9.0 is --arch 90"),
        (["--device", "cuda", "--arch", "75"], "--arch 75: too old: 80 or newer is needed"),
        (["--device", "cuda", "--arch", "90,4"], "--arch 4: too old"),
        (["--device", "cuda"], "--arch 90 compiles without a GPU"),
    ],
)
def test_what_warmup_for_a_gpu_refuses(
    arguments: list[str],
    said: str,
    tiny: Callable[..., Any],
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPEC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda, "unavailable_reason", lambda index: "there is no NVIDIA driver")
    if "--arch" in arguments and nvrtc_problem() is not None:
        pytest.skip("NVRTC is not installed")
    assert run(["warmup", str(tiny("qwen3").path), *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("error:") == 1


def test_warmup_compiles_once(
    tiny: Callable[..., Any], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEC_CACHE_DIR", str(tmp_path))
    model = str(tiny("qwen3").path)
    assert run(["warmup", model]) == 0
    shown = capsys.readouterr()
    kernels = list((tmp_path / "kernels").glob("*.o"))
    where = re.escape(str(tmp_path / "kernels"))
    found = re.fullmatch(rf"compiled (\d+) kernels in (\d+\.\d) s, kept in {where}\n", shown.out)
    assert found is not None
    assert 3 < int(found[1]) <= len(kernels)
    assert any(path.name.startswith("pick-") for path in kernels), "sampling is compiled too"
    assert 0 < float(found[2]) < 60
    assert f"compiling {found[1]} kernels, once for this file\n" in shown.err

    assert run(["warmup", model]) == 0
    shown = capsys.readouterr()
    folder = tmp_path / "kernels"
    assert (shown.out, shown.err) == (f"nothing to compile: all kernels are in {folder}\n", "")

    assert run(["generate", "-m", model, "-n", "3", "hi"]) == 0
    assert "compiling" not in capsys.readouterr().err
    assert set(folder.glob("*.o")) == set(kernels)


def test_a_cache_that_cannot_be_written_is_a_failure(
    tiny: Callable[..., Any], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernels").write_text("a file where the folder should be")
    monkeypatch.setenv("SPEC_CACHE_DIR", str(tmp_path))
    assert run(["warmup", str(tiny("qwen3").path), "-q"]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == (
        "spec: error: kernels were compiled, but could not be kept: "
        f"cannot write to {tmp_path / 'kernels'}\n"
    )


def test_a_file_that_is_missing(capsys: Capture) -> None:
    assert run(["warmup", "none.gguf"]) == 1
    assert capsys.readouterr().err == (
        "spec: error: none.gguf: cannot be read: No such file or directory\n"
    )
    assert run(["warmup"]) == 2
    assert capsys.readouterr().err == "spec: error: missing argument 'FILE'\n"


def test_repacked_weights_are_kept_and_removed(
    tiny: Callable[..., Any], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEC_CACHE_DIR", str(tmp_path))
    folder = tmp_path / "repacked"
    model = str(tiny("qwen3").path)
    assert run(["warmup", model, "-q"]) == 0
    assert not folder.exists()
    capsys.readouterr()
    for _ in range(2):
        assert run(["warmup", model, "-q", "--repack-cache"]) == 0
        (entry,) = folder.glob("*.tiles")
        last = capsys.readouterr().out.splitlines()[-1]
        assert last == f"repacked weights: 0.00 GiB, kept in {entry}"

    plain = ["generate", "-m", model, "-n", "5", "-s", "3", "hi"]
    texts = []
    for flags, variable in (([], "0"), (["--repack-cache"], "0"), ([], "1")):
        monkeypatch.setenv("SPEC_REPACK_CACHE", variable)
        assert run([*plain, *flags]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] == texts[2]
    monkeypatch.delenv("SPEC_REPACK_CACHE")

    for count in (1, 0):
        assert run(["warmup", "--clear"]) == 0
        line = rf"removed repacked weights: {count} files, 0\.\d MiB from {re.escape(str(folder))}"
        assert re.fullmatch(line, capsys.readouterr().out.splitlines()[-1])
    assert list(folder.iterdir()) == []


def test_all_that_is_compiled_is_removed(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPEC_CACHE_DIR", str(tmp_path))
    kernels, cubins = tmp_path / "kernels", tmp_path / "cubins"
    for folder in (kernels, cubins, tmp_path / "hub"):
        folder.mkdir()
    for name in ("norm-1.o", "pick-2.o", "tmpabc"):  # the last died while it was written
        (kernels / name).write_bytes(bytes(2**20))
    CubinCache(cubins).write("qmm-sm90-1.cubin", Entry("", bytes(3 * 2**20)))
    others = [kernels / "mine.txt", cubins / "mine.txt", tmp_path / "hub" / "a.o"]
    for path in others:
        path.touch()
    assert run(["warmup", "--clear"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"removed compiled kernels of cpu: 2 files, 3.0 MiB from {kernels}",
        f"removed compiled kernels of cuda: 1 files, 3.0 MiB from {cubins}",
        f"removed repacked weights: 0 files, 0.0 MiB from {tmp_path / 'repacked'}",
    ]
    assert [path for path in sorted(tmp_path.rglob("*")) if path.is_file()] == sorted(others)


@pytest.mark.slow
def test_weights_that_cannot_be_kept_are_a_failure_of_warmup_alone(
    tiny: Callable[..., Any], tmp_path: Path, real_spec: Run
) -> None:
    folder = tmp_path / "repacked"
    folder.write_text("a file where the folder should be")
    model = str(tiny("qwen3").path)
    extra = {"SPEC_CACHE_DIR": str(tmp_path)}
    done = real_spec("warmup", model, "-q", "--repack-cache", **extra)
    line = f"spec: error: the repacked weights could not be kept in {folder}\n"
    assert (done.returncode, done.stderr) == (1, line)
    done = real_spec("generate", "-m", model, "-n", "2", "--repack-cache", "hi", **extra)
    assert done.returncode == 0
    assert done.stderr.count(f"repacked weights are not kept: {folder}: ") == 1


def test_only_the_cpu_repacks(capsys: Capture, tiny: Callable[..., Any]) -> None:
    model = str(tiny("qwen3").path)
    assert run(["warmup", model, "--device", "torch", "--repack-cache"]) == 2
    assert capsys.readouterr().err == (
        "spec: error: --repack-cache is for --device cpu, not torch\n"
    )
