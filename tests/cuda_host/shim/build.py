"""Compiles a CUDA source for the CPU.

A generated file includes the source and exports a way to call each of its kernels, which are found
in the preprocessed text. Libraries lie in a cache, named by the digest of all that went into them.
"""

from __future__ import annotations

import ctypes
import getpass
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specdec.cuda_kernels.kernel import FOLDER, Source

HERE = Path(__file__).parent
INCLUDE = FOLDER / "include"
FLAGS = (
    *("-x", "c++", "-std=c++17", "-shared", "-fPIC", "-w"),
    *("-ffp-contract=off", "-fno-stack-protector", "-DCUDA_HOST_SHIM"),
)
SANITIZE = (
    *("-O1", "-g", "-fno-omit-frame-pointer"),
    *("-fsanitize=address", "-fsanitize-recover=address"),
)
# In the preprocessed text, with the macros that launch.h would make nothing of left standing.
MARKS = ("-D__global__=SHIM_GLOBAL", "-D__launch_bounds__(...)=SHIM_BOUNDS(__VA_ARGS__)")


class BuildError(Exception):
    """The compiler refused a source: what it said."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of a kernel, as C++ sees it."""

    kind: str  # i, u: integers; f; b: bool; p: pointer; v: anything else, a struct
    size: int  # bytes; of a pointer: of what it points to
    pointee: str = ""  # its kind
    constant: bool = False  # a pointer to const
    alignment: int = 1  # that a pointer needs


@dataclass(frozen=True, slots=True)
class HostKernel:
    name: str
    parameters: tuple[Parameter, ...]
    bounds: str  # what __launch_bounds__ said, as text
    run: ctypes._NamedFuncPointer


def compiler() -> str | None:
    return shutil.which("g++") or shutil.which("clang++")


def unavailable_reason() -> str | None:
    """Why nothing can be compiled here."""
    if os.name != "posix":
        return "the CPU shim for CUDA sources needs a POSIX system"
    return None if compiler() else "no C++ compiler (g++ or clang++) is on the path"


@cache
def load(source: Source, sanitize: bool) -> dict[str, HostKernel]:
    """The kernels of a source by name, compiled if the cache has none."""
    path = library(source, sanitize)
    loaded = ctypes.CDLL(str(path))
    bounds = dict(line.split("\t") for line in _listing(path).read_text().splitlines())
    return {name: _kernel(loaded, name, bound) for name, bound in bounds.items()}


def library(source: Source, sanitize: bool) -> Path:
    flags = [*FLAGS, *(SANITIZE if sanitize else ("-O2",)), *_machine_flags()]
    flags += [f"-I{INCLUDE}", f"-I{HERE}", *(f"-D{name}={value}" for name, value in source.defines)]
    path = _cache_folder() / f"{source.path.stem}-{_digest(source, flags)}.so"
    if not path.exists():
        _compile(source, flags, path)
    return path


def _compile(source: Source, flags: list[str], path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        main = folder / "main.cpp"
        main.write_text(_wrapped(source, []))
        kernels = dict(find_kernels(_run([*flags, *MARKS, "-E", "-P", str(main)], source)))
        if not kernels:
            raise BuildError(f'{source.label}: no extern "C" __global__ function in it')
        main.write_text(_wrapped(source, list(kernels)))
        built = folder / "built.so"
        _run([*flags, str(main), "-o", str(built)], source)
        listing = folder / "kernels"
        listing.write_text("".join(f"{name}\t{bounds}\n" for name, bounds in kernels.items()))
        # Another process may do the same: each file appears whole, the library last.
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


def _run(arguments: list[str], source: Source) -> str:
    command = [str(compiler()), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{source.label}: the CPU compiler refused it\n{done.stderr[:6000]}")
    return done.stdout


def _kernel(loaded: ctypes.CDLL, name: str, bounds: str) -> HostKernel:
    signature = getattr(loaded, f"shim_signature_{name}")
    signature.restype = ctypes.c_char_p
    words = signature().decode().split()
    run = getattr(loaded, f"shim_launch_{name}")
    return HostKernel(name, tuple(_parameter(word) for word in words), bounds, run)


def _parameter(word: str) -> Parameter:
    """`i4`, or `pc16:u4`: a pointer to const of alignment 16"""
    if not word.startswith("p"):
        return Parameter(word[0], int(word[1:]))
    head, _, pointee = word.partition(":")
    return Parameter("p", int(pointee[1:]), pointee[0], head[1] == "c", int(head[2:]))


@cache
def _cache_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"specdec-shim-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _listing(path: Path) -> Path:
    return path.with_suffix(".kernels")


@cache
def _headers() -> bytes:
    files = sorted([*INCLUDE.glob("*.cuh"), *HERE.glob("*.h")])
    return b"\0".join(path.name.encode() + path.read_bytes() for path in files)


def _digest(source: Source, flags: list[str]) -> str:
    parts = [_version(), repr(flags), str(source.path)]
    text = "\0".join(parts).encode() + _headers() + source.path.read_bytes()
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
