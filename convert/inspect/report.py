"""What is found out about a file, as data: the command prints it, `--json` dumps it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class Severity(StrEnum):
    PROBLEM = "problem"  # something is broken
    WARNING = "warning"  # it runs, but not as it should, or not everywhere
    NOTE = "note"


class Part(StrEnum):
    """Of what a finding speaks."""

    MODEL = "model"
    HEAD = "mtp"
    LLAMA_CPP = "llama.cpp"


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Severity
    part: Part
    text: str
    fix: str = ""  # a command, or what to do


@dataclass(frozen=True, slots=True)
class TypeCount:
    name: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Layers:
    trunk: int
    attention: int = 0
    recurrent: int = 0
    moe: int = 0
    heads: int = 0  # MTP blocks that are there
    experts: int = 0
    experts_used: int = 0


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    model: str
    pre: str
    size: int
    bos: str | None  # the token that is put in front, if one is
    eos: str | None


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    characters: int
    tools: bool = False
    system: bool = False
    thinking: str = ""  # "": no; "always"; else the switch, enable_thinking for one
    names: tuple[str, ...] = ()  # of further templates
    error: str = ""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    weights: int
    kv_per_1k: int  # tokens of context
    recurrent: int = 0  # state of one text
    factors: int = 0  # what undoing drafts needs beside it
    n_ctx: int = 0  # tokens of context that `total` is for
    total: int = 0
    is_estimate: bool = False  # of an architecture that is not run here


@dataclass(frozen=True, slots=True)
class Drafter:
    name: str
    works: bool
    text: str
    command: str = ""


@dataclass(slots=True)
class Report:
    label: str
    kind: str  # model, mtp-head, checkpoint, adapter, imatrix, mmproj, vocabulary, ...
    what: str  # the same in words
    format: str  # gguf or safetensors
    files: int = 1
    bytes: int = 0
    architecture: str = ""
    name: str = ""
    quantised: str = ""  # the recipe that the file names
    parameters: int = 0
    bits_per_weight: float = 0.0
    context: int | None = None
    width: int | None = None
    source: str = ""  # the repository that it was made from
    runs_here: bool = False
    types: list[TypeCount] = field(default_factory=list)
    layers: Layers | None = None
    tokenizer: TokenizerFacts | None = None
    template: TemplateFacts | None = None
    memory: Memory | None = None
    becomes: dict[str, int] = field(default_factory=dict)  # recipe: bytes of the GGUF
    drafters: list[Drafter] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return all(finding.severity is not Severity.PROBLEM for finding in self.findings)

    def problem(self, part: Part, text: str, fix: str = "") -> None:
        self.findings.append(Finding(Severity.PROBLEM, part, text, fix))

    def warning(self, part: Part, text: str, fix: str = "") -> None:
        self.findings.append(Finding(Severity.WARNING, part, text, fix))

    def note(self, part: Part, text: str, fix: str = "") -> None:
        self.findings.append(Finding(Severity.NOTE, part, text, fix))

    def has_problem(self, part: Part) -> bool:
        return any(f.severity is Severity.PROBLEM and f.part is part for f in self.findings)

    def json(self) -> dict[str, Any]:
        return {"sound": self.is_sound} | asdict(self)
