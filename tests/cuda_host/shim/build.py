"""Compiles a CUDA source for the CPU.

A generated file includes the source and exports a way to call each of its kernels, which are found
in the preprocessed text. Libraries lie in a cache, named by the digest of all that went into them.
"""

from __future__ import annotations

import ctypes
import getpass
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from nextn.cuda_kernels.kernel import FOLDER, Source

from .alone import alone

HERE = Path(__file__).parent
INCLUDE = FOLDER / "include"
FLAGS = (
    *("-x", "c++", "-std=c++17", "-fPIC", "-w", "-fvisibility=hidden", "-DCUDA_HOST_SHIM"),
    *("-ffp-contract=off", "-fno-stack-protector", f"-I{INCLUDE}", f"-I{HERE}"),
)
# Of what these find undefined.h makes faults of a kernel.
CHECKS = "-fsanitize=alignment,bounds,null,shift-exponent,integer-divide-by-zero"
# How sources are compiled, what they are linked with, and what links: of AddressSanitizer there is
# a library, -fsanitize=thread calls what races.h defines. Optimised further they take three times
# as long to compile, and are run a few times.
Mode = Literal["plain", "addresses", "races"]
ADDRESS = ("-fsanitize=address", "-fsanitize-recover=address")
SLOW = ("-O1", "-g1", "-fno-omit-frame-pointer")
SOURCE_FLAGS: dict[Mode, tuple[str, ...]] = {
    "plain": ("-Og",),
    "addresses": (*SLOW, *ADDRESS),
    "races": ("-O1", "-g1", "-fsanitize=thread"),
}
RUNTIME_FLAGS: dict[Mode, tuple[str, ...]] = {
    "plain": ("-O2",),
    "addresses": (*SLOW, *ADDRESS),
    "races": ("-O2", "-DSHIM_RACES"),
}
LINK_FLAGS: dict[Mode, tuple[str, ...]] = {"plain": (), "addresses": ADDRESS[:1], "races": ()}
VOLATILE = "-tsan-distinguish-volatile=1"
KEPT_S = 3 * 24 * 3600  # what was not used for so long goes from the cache
# In the preprocessed text, with the macros that launch.h would make nothing of left standing.
MARKS = ("-D__global__=SHIM_GLOBAL", "-D__launch_bounds__(...)=SHIM_BOUNDS(__VA_ARGS__)")


class BuildError(Exception):
    """The compiler refused a source: what it said."""


class Parameter(ctypes.Structure):
    """`shim::Parameter`: of a kernel, as C++ sees it."""

    _fields_ = (
        ("kind", ctypes.c_char),  # i, u: integers; f; b: bool; p: pointer; v: others, as structures
        ("pointee", ctypes.c_char),  # what a pointer points to
        ("is_constant", ctypes.c_bool),  # a pointer to const
        ("size", ctypes.c_int),  # bytes; of a pointer: of what it points to
        ("alignment", ctypes.c_int),  # that a pointer needs
    )


@dataclass(frozen=True, slots=True)
class HostKernel:
    name: str
    parameters: tuple[Parameter, ...]
    bounds: str  # what __launch_bounds__ said, as text
    run: ctypes._NamedFuncPointer
    library: Path


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++")


def unavailable_reason() -> str | None:
    """Why nothing can be compiled here."""
    if os.name != "posix":
        return "the CPU shim for CUDA sources needs a POSIX system"
    return None if compiler() else "no C++ compiler (g++ or clang++) is on the path"


@cache
def load(source: Source, mode: Mode) -> dict[str, HostKernel]:
    """The kernels of a source by name, compiled if the cache has none."""
    path = library(source, mode)
    loaded = ctypes.CDLL(str(path))
    bounds = dict(line.split("\t") for line in _listing(path).read_text().splitlines())
    return {name: _kernel(loaded, path, name, bound) for name, bound in bounds.items()}


def library(source: Source, mode: Mode) -> Path:
    defines = (f"-D{name}={value}" for name, value in source.defines)
    flags = [*FLAGS, *_machine_flags(), *SOURCE_FLAGS[mode], CHECKS, *defines]
    if mode == "races":
        flags += ["-mllvm", VOLATILE] if "clang" in _version() else [f"--param={VOLATILE[1:]}"]
    path = _cache_folder() / f"{source.path.stem}-{_digest(flags, source)}.so"
    if not path.exists():
        with alone(str(path)):
            if not path.exists():
                _compile(source, flags, path, [str(_runtime(mode)), *LINK_FLAGS[mode]])
    for used in (path, _listing(path)):
        used.touch()
    return path


@cache
def _runtime(mode: Mode) -> Path:
    """What all sources are linked with."""
    flags = [*FLAGS, *_machine_flags(), *RUNTIME_FLAGS[mode]]
    path = _cache_folder() / f"runtime-{_digest(flags)}.o"
    with alone(str(path)), tempfile.TemporaryDirectory(dir=path.parent) as name:
        if not path.exists():
            built = Path(name) / "runtime.o"
            _run([*flags, "-c", str(HERE / "runtime.cpp"), "-o", str(built)], "runtime.cpp")
            os.replace(built, path)
    return path


def _compile(source: Source, flags: list[str], path: Path, link: list[str]) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        main = folder / "main.cpp"
        main.write_text(_wrapped(source, []))
        text = _run([*flags, *MARKS, "-E", "-P", str(main)], source.label)
        kernels = dict(find_kernels(text))
        if not kernels:
            raise BuildError(f'{source.label}: no extern "C" __global__ function in it')
        main.write_text(_wrapped(source, list(kernels)))
        half, built = str(folder / "half.o"), folder / "built.so"
        _run([*flags, "-c", str(main), "-o", half], source.label)
        _run(["-shared", half, *link, "-o", str(built)], source.label)
        listing = folder / "kernels"
        listing.write_text("".join(f"{name}\t{bounds}\n" for name, bounds in kernels.items()))
        # Others look without waiting: each file appears whole, the library last.
        os.replace(listing, _listing(path))
        os.replace(built, path)


def _wrapped(source: Source, kernels: list[str]) -> str:
    """In a namespace without a name, so that no variable is shared with another library."""
    lines = ['#include "launch.h"', "namespace {", f'#include "{source.path}"', "}"]
    return "\n".join([*lines, *(f"SHIM_KERNEL({name})" for name in kernels), ""])


def find_kernels(text: str) -> Iterator[tuple[str, str]]:
    """(name, launch bounds) in a source preprocessed with MARKS."""
    for match in re.finditer(r'extern\s*"C"\s*SHIM_GLOBAL\b', text):
        head = text[match.end() : text.index("{", match.end())]
        bounds = ""
        if found := re.search(r"SHIM_BOUNDS\s*\(", head):
            end = _closing(head, found.end())
            bounds = " ".join(head[found.end() : end].split())
            head = head[: found.start()] + head[end + 1 :]
        if name := re.search(r"\bvoid\s+(\w+)\s*\(", head):
            yield name[1], bounds


def _closing(text: str, start: int) -> int:
    depth = 1
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    return len(text)


def _run(arguments: list[str], label: str) -> str:
    command = [str(compiler()), *arguments]
    # AddressSanitizer is not for the compiler.
    env = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{label}: the CPU compiler refused it\n{done.stderr[:6000]}")
    return done.stdout


def _kernel(loaded: ctypes.CDLL, path: Path, name: str, bounds: str) -> HostKernel:
    parameters = getattr(loaded, f"shim_parameters_{name}")
    parameters.restype = ctypes.POINTER(Parameter)
    found = itertools.takewhile(lambda parameter: parameter.kind != b"\0", parameters())
    run = getattr(loaded, f"shim_launch_{name}")
    return HostKernel(name, tuple(found), bounds, run, path)


@cache
def _cache_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"nextn-shim-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # another process does the same
            if time.time() - path.stat().st_mtime > KEPT_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


def _listing(path: Path) -> Path:
    return path.with_suffix(".kernels")


@cache
def _headers() -> bytes:
    files = sorted([*INCLUDE.glob("*.cuh"), *HERE.glob("*.h"), *HERE.glob("*.cpp")])
    return b"\0".join(path.name.encode() + path.read_bytes() for path in files)


def _digest(flags: list[str], source: Source | None = None) -> str:
    """Of all that goes into a file: compiler, flags, headers, source."""
    text = f"{_version()}\0{flags}\0".encode() + _headers()
    if source:
        text += str(source.path).encode() + source.path.read_bytes()
    return hashlib.sha256(text).hexdigest()[:20]


@cache
def _version() -> str:
    command = [str(compiler()), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@cache
def _machine_flags() -> tuple[str, ...]:
    """fmaf is one instruction, not a call, where the processor has it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    flags = set(next((x for x in text.splitlines() if x.startswith("flags")), "").split())
    if {"fma", "avx2", "bmi1", "bmi2", "movbe", "f16c"} <= flags:
        return ("-march=x86-64-v3", "-fcf-protection=none")
    return ("-fcf-protection=none",) if flags else ()
