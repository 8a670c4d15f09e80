"""What a kernel's machine code consists of: its loops, and their instructions by kind.

Nothing of this runs a kernel. A budget of instructions per weight is a figure of speed that can be
held on a machine without a GPU: a warp issues one instruction per clock, of whatever kind.

    loop = hot_loop(cubin, "qmm_q4_k_n8")
    assert loop.count("LDS", "128") <= 4
    assert lane_instructions_per_weight(loop, column_tiles=1) <= 2.5
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from nextn.cuda_kernels.compile import Cubin

PACKAGE = "nvidia-cuda-nvdisasm"
PROGRAM = ("nvdisasm", "nvdisasm.exe")
FUNCTION = re.compile(r"^\.text\.([\w$]+):")
LABEL = re.compile(r"^(\.L_\w+):")
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?\w+)\s+)?([A-Z][\w.]*)\s*([^;]*)")
TARGET = re.compile(r"`\((\.L_\w+)\)")
ENDS = ("EXIT", "RET", "BRX", "JMX", "BPT")  # nothing follows, unless under a predicate
# The kind of an opcode by what it begins with; the first that fits.
KINDS = {
    "tensor": ("IMMA", "HMMA", "BMMA", "DMMA", "QMMA", "OMMA"),
    "copy": ("LDGSTS", "UBLKCP", "UTMALDG", "LDGDEPBAR", "DEPBAR"),
    "global load": ("LDG", "LD."),
    "global store": ("STG", "ST."),
    "shared load": ("LDS", "LDSM"),
    "shared store": ("STS",),
    "local": ("LDL", "STL"),
    "shuffle": ("SHFL", "VOTE", "MATCH", "REDUX", "CREDUX"),
    "atomic": ("ATOM", "RED"),
    "barrier": ("BAR", "WARPSYNC", "SYNCS", "MEMBAR", "ERRBAR"),
    "branch": ("BRA", "BSSY", "BSYNC", "BREAK", "EXIT", "CALL", "RET", "BMOV", "YIELD"),
    "special": ("MUFU",),
    "convert": ("I2F", "F2I", "F2F", "I2I", "FRND"),
    "constant": ("LDC", "ULDC", "S2R", "CS2R", "S2UR"),
    "multiply": ("IMAD", "IDP", "UIMAD", "FFMA", "FMUL", "HFMA2", "HMUL2"),
    "nothing": ("NOP",),
}
# weights of one lane that a product takes: rows x k / 32, from the shapes of PTX
WEIGHTS_OF_A_PRODUCT = {"16832": 16, "16816": 8, "1688": 4, "8816": 4}


@dataclass(frozen=True, slots=True)
class Instruction:
    address: int
    opcode: str  # as printed: `LDG.E.128.CONSTANT`
    operands: str
    predicated: bool
    target: str | None  # the label that a branch goes to

    @property
    def kind(self) -> str:
        for kind, starts in KINDS.items():
            if self.opcode.startswith(starts):
                return kind
        return "other"  # integer and float additions, logic, moves, comparisons


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    instructions: tuple[Instruction, ...] = ()
    labels: dict[str, int] = field(default_factory=dict)  # number of the instruction that follows


@dataclass(frozen=True, slots=True)
class Code:
    """Some instructions of a function, each counted once."""

    instructions: tuple[Instruction, ...]

    @property
    def size(self) -> int:
        """Without those that do nothing."""
        return sum(one.kind != "nothing" for one in self.instructions)

    @property
    def kinds(self) -> Counter[str]:
        return Counter(one.kind for one in self.instructions)

    @property
    def opcodes(self) -> Counter[str]:
        return Counter(one.opcode for one in self.instructions)

    def count(self, opcode: str, *modifiers: str) -> int:
        """`count("LDG", "128")`: opcodes that are called so, with all of these modifiers."""
        parts = (one.opcode.split(".") for one in self.instructions)
        return sum(first == opcode and set(modifiers) <= set(rest) for first, *rest in parts)


def functions(cubin: Cubin) -> dict[str, Function]:
    return _functions(cubin.image)


def whole(cubin: Cubin, kernel: str) -> Code:
    return Code(functions(cubin)[kernel].instructions)


def loops(function: Function) -> list[Code]:
    """Each loop with all that is between a branch back and where it goes, in or out of line.

    Branches back to one place are one loop. A branch to itself, which ends a function, is none.
    """
    before = _before(function)
    found: dict[int, set[int]] = {}
    for number, one in enumerate(function.instructions):
        head = function.labels.get(one.target or "")
        if head is not None and head < number and one.opcode.startswith("BRA"):
            found.setdefault(head, {head}).update(_body(head, number, before))
    bodies = (sorted(found[head]) for head in sorted(found))
    return [Code(tuple(function.instructions[i] for i in body)) for body in bodies]


def innermost_loops(function: Function) -> list[Code]:
    """Those with no other loop within."""
    every = [(loop, {one.address for one in loop.instructions}) for loop in loops(function)]
    return [loop for loop, body in every if not any(other < body for _, other in every)]


def hot_loop(cubin: Cubin, kernel: str) -> Code:
    """The innermost loop with the most tensor-core products; if none has any, the longest."""
    found = innermost_loops(functions(cubin)[kernel])
    if not found:
        raise AssertionError(f"{kernel} has no loop: it was unrolled; count it `whole`")
    return max(found, key=lambda loop: (loop.kinds["tensor"], loop.size))


def reached_before(function: Function, opcode: str) -> Code:
    """All that can run before an instruction of that name has."""
    after: dict[int, list[int]] = {}
    for number, sources in enumerate(_before(function)):
        for source in sources:
            after.setdefault(source, []).append(number)
    seen, waiting = {0}, [0]
    while waiting:
        number = waiting.pop()
        if not function.instructions[number].opcode.startswith(opcode):
            new = [n for n in after.get(number, []) if n not in seen]
            seen.update(new)
            waiting += new
    return Code(tuple(function.instructions[i] for i in sorted(seen)))


def lane_instructions_per_weight(code: Code, column_tiles: int) -> float:
    """Instructions that a lane issues for each weight, where products have weights as rows.

    `column_tiles`: how many products meet the same weights (tiles of 8 columns).
    """
    weights = 0
    for one in code.instructions:
        if one.kind == "tensor":
            shape = one.opcode.split(".")[1]
            weights += WEIGHTS_OF_A_PRODUCT[shape]
    if not weights:
        raise AssertionError("no tensor-core product here")
    return code.size / (weights / column_tiles)


def _before(function: Function) -> list[list[int]]:
    """The instructions from which each is reached."""
    found: list[list[int]] = [[] for _ in function.instructions]
    for number, one in enumerate(function.instructions):
        branches = one.opcode.startswith("BRA")
        stops = branches or one.opcode.startswith(ENDS)
        conditional = one.predicated or (branches and not one.operands.startswith("`"))
        if number + 1 < len(found) and (conditional or not stops):
            found[number + 1].append(number)
        head = function.labels.get(one.target or "")
        if branches and head is not None and head < len(found):
            found[head].append(number)
    return found


def _body(head: int, end: int, before: Sequence[Sequence[int]]) -> set[int]:
    """All from which `end` is reached without passing `head`."""
    body, waiting = {head, end}, [end]
    while waiting:
        for number in before[waiting.pop()]:
            if number not in body:
                body.add(number)
                waiting.append(number)
    return body


@cache
def _functions(image: bytes) -> dict[str, Function]:
    found: dict[str, Function] = {}
    name, instructions, labels = "", list[Instruction](), dict[str, int]()
    for line in _disassembled(image).splitlines():
        if start := FUNCTION.match(line):
            name, instructions, labels = start[1], [], {}
        elif label := LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif name and (parts := INSTRUCTION.search(line)):
            instructions.append(_instruction(*parts.groups()))
            found[name] = Function(name, tuple(instructions), labels)
    return found


def _instruction(address: str, predicate: str | None, opcode: str, rest: str) -> Instruction:
    target = TARGET.search(rest)
    operands = rest.strip()
    name = target[1] if target else None
    return Instruction(int(address, 16), opcode, operands, predicate is not None, name)


def _disassembled(image: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(image)
        file.flush()
        command = [str(disassembler()), "-c", "-ndf", file.name]  # labels need no data flow
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@cache
def disassembler() -> Path | None:
    """nvdisasm of its wheel, which needs no CUDA toolkit."""
    try:
        listed = files(PACKAGE) or []
    except PackageNotFoundError:
        return None
    paths = (Path(str(path.locate())) for path in listed if path.name in PROGRAM)
    return next((path for path in paths if path.exists()), None)
