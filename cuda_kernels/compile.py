"""Sources to machine code (cubins) with NVRTC, which needs neither a GPU nor a CUDA toolkit.

Nothing is compiled, and nothing of CUDA imported, before `Compiler.compile` is called.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from .cache import CubinCache, Entry
from .kernel import FOLDER, Report, Source
from .report import Usage, usage_by_kernel, without_assembler

ARCHITECTURES = (80, 86, 89, 90, 100, 120)  # what tests compile for; compute capability times ten
INCLUDE = FOLDER / "include"
INCLUDED = re.compile(rb'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
# No `a * b + c` becomes an fma behind our back: what a source says is what every machine computes.
OPTIONS = ("--std=c++17", "--fmad=false", "--ptxas-options=-v")


class CompileError(RuntimeError):
    """A source that NVRTC refuses; the message has its complaints as `file:line: text`."""


@dataclass(frozen=True, slots=True)
class Cubin:
    source: Source
    arch: int
    image: bytes
    usage: Mapping[str, Usage]  # by the names of its kernels
    warnings: str  # empty, or lines of `file:line: text`


class Compiler:
    """Compiles what `cache` does not have."""

    def __init__(self, cache: CubinCache | None = None) -> None:
        self.cache = CubinCache(None) if cache is None else cache

    def lacks(self, source: Source, arch: int) -> bool:
        """Whether it would have to be compiled."""
        return not self.cache.has(_name(source.path.read_bytes(), source, arch))

    def compile(self, source: Source, arch: int) -> Cubin:
        code = source.path.read_bytes()
        options = _options(source, arch)
        name = _name(code, source, arch)
        entry = self.cache.read(name)
        if entry is None:
            entry = _compile(code, source, arch, options)
            self.cache.write(name, entry)
        warnings = without_assembler(entry.log)
        return Cubin(source, arch, entry.image, usage_by_kernel(entry.log), warnings)

    def compile_all(
        self, wanted: Iterable[tuple[Source, int]], report: Report | None = None
    ) -> dict[tuple[Source, int], Cubin]:
        """Several at a time: NVRTC runs without Python's lock. The first error is raised. What is
        in the cache is not reported."""
        pairs = list(dict.fromkeys(wanted))
        lacking = {pair for pair in pairs if self.lacks(*pair)}
        n_compiled = 0
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            tasks = {pool.submit(self.compile, *pair): pair for pair in pairs}
            try:
                for task in as_completed(tasks):
                    task.result()
                    n_compiled += tasks[task] in lacking
                    if report is not None and tasks[task] in lacking:
                        report(n_compiled, len(lacking))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        return {pair: task.result() for task, pair in tasks.items()}


@cache
def nvrtc_problem() -> str | None:
    """Why nothing can be compiled here, as a sentence."""
    try:
        nvrtc_version()
    except ModuleNotFoundError:
        return "cuda-bindings is not installed; run: pip install 'nextn[cuda]'"
    except (RuntimeError, OSError, ImportError) as error:
        # cuda-bindings finds NVRTC when it is first called; its own errors are RuntimeErrors.
        first = str(error).strip().partition("\n")[0]
        return f"NVRTC, the compiler for CUDA, is not found ({first}); " + (
            "run: pip install 'nextn[cuda]'"
        )
    return None


@cache
def nvrtc_version() -> tuple[int, int]:
    major, minor = _ok(_nvrtc().nvrtcVersion())
    return int(major), int(minor)


@cache
def supported_architectures() -> tuple[int, ...]:
    """What this NVRTC can compile for."""
    return tuple(sorted(map(int, _ok(_nvrtc().nvrtcGetSupportedArchs())[0])))


def _options(source: Source, arch: int) -> tuple[str, ...]:
    defines = (f"--define-macro={name}={value}" for name, value in source.defines)
    return (f"--gpu-architecture=sm_{arch}", *OPTIONS, *defines)


def _name(code: bytes, source: Source, arch: int) -> str:
    """Of its file in the cache."""
    return f"{source.path.stem}-sm{arch}-{_key(code, source, _options(source, arch))}.cubin"


def _key(code: bytes, source: Source, options: tuple[str, ...]) -> str:
    """Of all that the machine code depends on."""
    digest = hashlib.sha256(repr((nvrtc_version(), source.file, options)).encode())
    for name, text in [("", code), *sorted(headers(code).items())]:
        digest.update(f"{name} {len(text)} ".encode())
        digest.update(text)
    return digest.hexdigest()[:32]


def headers(code: bytes) -> dict[str, bytes]:
    """All of ours that a source includes, and what these include, under any condition."""
    found: dict[str, bytes] = {}
    waiting = [code]
    while waiting:
        for line in INCLUDED.findall(waiting.pop()):
            name = line.decode()
            path = INCLUDE / name
            if name not in found and path.is_file():
                found[name] = path.read_bytes()
                waiting.append(found[name])
    return found


def _compile(code: bytes, source: Source, arch: int, options: tuple[str, ...]) -> Entry:
    nvrtc = _nvrtc()
    (program,) = _ok(nvrtc.nvrtcCreateProgram(code, source.file.encode(), 0, [], []))
    try:
        flags = [option.encode() for option in (*options, f"--include-path={INCLUDE}")]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
        log = bytearray(_ok(nvrtc.nvrtcGetProgramLogSize(program))[0])
        _ok(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b"\0").decode("utf-8", "replace")
        text = text.replace(f"{INCLUDE}{os.sep}", "include/")
        if int(status) != 0:
            raise CompileError(_complaint(source, arch, text, status))
        image = bytearray(_ok(nvrtc.nvrtcGetCUBINSize(program))[0])
        _ok(nvrtc.nvrtcGetCUBIN(program, image))
        return Entry(text, bytes(image))
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _complaint(source: Source, arch: int, log: str, status: object) -> str:
    said = without_assembler(log) or f"NVRTC says {status}"
    return f"{source.label} does not compile for sm_{arch}:\n{said}"


def _nvrtc() -> Any:
    return import_module("cuda.bindings.nvrtc")


def _ok(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Results of a call, less its status."""
    status, *rest = answer
    if int(status) != 0:
        raise RuntimeError(f"NVRTC: {status}")
    return tuple(rest)
