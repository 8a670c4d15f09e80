"""What the assembler (ptxas) says about each kernel that it made."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

ENTRY = re.compile(r"Compiling entry function '(\w+)' for")
FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
SHARED = re.compile(r"(\d+) bytes smem")
MESSAGE = re.compile(r"^(?P<file>.+?)\((?P<line>\d+)\): (?P<text>.*)$")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a kernel and of the functions within it that were not inlined."""

    registers: int = 0  # per thread
    shared: int = 0  # bytes of static shared memory
    stack: int = 0  # bytes per thread: arrays that are indexed, and spills
    spilled: int = 0  # bytes per thread that are stored or loaded for want of registers


def usage_by_kernel(log: str) -> dict[str, Usage]:
    found: dict[str, Usage] = {}
    name = ""
    for line in log.splitlines():
        if entry := ENTRY.search(line):
            name = entry[1]
            found[name] = Usage()
        if not name:
            continue
        one = found[name]
        if frame := FRAME.search(line):
            stack, stores, loads = map(int, frame.groups())
            one = replace(one, stack=one.stack + stack, spilled=one.spilled + max(stores, loads))
        if used := USED.search(line):
            shared = SHARED.search(line)
            one = replace(one, registers=int(used[1]), shared=int(shared[1]) if shared else 0)
        found[name] = one
    return found


def without_assembler(log: str) -> str:
    """What the compiler itself had to say: errors and warnings, as `file:line: text`."""
    kept = (line for line in log.strip(" \0\n").splitlines() if not line.startswith("ptxas info"))
    return "\n".join(_clickable(line for line in kept if not FRAME.search(line))).strip("\n")


def _clickable(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        message = MESSAGE.match(line)
        yield f"{message['file']}:{message['line']}: {message['text']}" if message else line
