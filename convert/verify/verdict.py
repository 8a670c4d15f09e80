"""The verdict on a file, as data: facts, drafters and findings. `--json` prints it as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from msgspec import Struct, field, to_builtins

from ...core.models.drafters.training_record import TrainingRecord


class Severity(StrEnum):
    PROBLEM = "problem"  # something is broken
    WARNING = "warning"  # it runs, but not as it should, or not everywhere
    NOTE = "note"


class Subject(StrEnum):
    """The part of a file, or the reader, that a finding is about."""

    MODEL = "model"
    HEAD = "mtp"
    DRAFTER = "drafter"
    MMPROJ = "mmproj"
    LLAMA_CPP = "llama.cpp"


class Finding(Struct, frozen=True):
    severity: Severity
    part: Subject
    text: str
    fix: str = ""  # a command, or what to do
    breaks_llama_cpp: bool = False  # which refuses the file, or aborts with it


class TypeCount(Struct, frozen=True):
    name: str
    tensors: int
    bytes: int


def count_types(tensors: Iterable[tuple[str, int]]) -> list[TypeCount]:
    """Of tensors by type and bytes; the type with the most bytes first."""
    counts, sizes = Counter[str](), Counter[str]()
    for name, n_bytes in tensors:
        counts[name] += 1
        sizes[name] += n_bytes
    return [TypeCount(name, counts[name], n) for name, n in sizes.most_common()]


class LayerCounts(Struct, frozen=True):
    trunk: int
    attention: int = 0
    recurrent: int = 0
    moe: int = 0
    heads: int = 0  # MTP blocks that are there
    experts: int = 0
    experts_used: int = 0


class TokenizerFacts(Struct, frozen=True):
    model: str
    pre: str
    size: int
    bos: str | None  # the token that is put in front, if one is
    eos: str | None


class TemplateFacts(Struct, frozen=True):
    characters: int
    tools: bool = False
    system: bool = False
    thinking: str = ""  # "": no; "always"; else the switch, enable_thinking for one
    names: tuple[str, ...] = ()  # of further templates
    error: str = ""


class MemoryFacts(Struct, frozen=True):
    """Bytes."""

    weights: int
    kv_per_1k: int  # tokens of context
    recurrent: int = 0  # state of one sequence
    factors: int = 0  # what undoing drafts needs beside it
    n_ctx: int = 0  # tokens of context that `total` is for
    total: int = 0
    is_estimate: bool = False  # of an architecture that is not run here


class TargetFacts(Struct, frozen=True):
    """The model that a drafter is for, and how it drafts."""

    width: int
    vocabulary: int
    layers: tuple[int, ...]  # whose inputs it reads
    head: int  # rows of its own head; 0: the target's
    shares: tuple[str, ...]  # what it takes from the target
    block_size: int = 0  # 0: one token after the other
    most: int = 0  # draft tokens of a pass
    mask: int | None = None


class ImageFacts(Struct, frozen=True):
    """What a vision tower makes of images."""

    projector: str  # llama.cpp's word
    layers: int
    width: int
    patch: int  # pixels of a side
    side: int  # pixels of the side of what becomes one row
    row: int  # numbers of a row; of its model's embeddings
    more_rows: int = 0  # as many numbers again for so many layers of the model


class DrafterVerdict(Struct, frozen=True):
    name: str
    works: bool
    text: str
    command: str = ""


class FileReport(Struct):
    label: str
    kind: str  # model, mtp-head, drafter, checkpoint, drafter-checkpoint, adapter, imatrix, ...
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
    converts: bool = False  # a checkpoint: `spec convert hf` takes it
    types: list[TypeCount] = field(default_factory=list)
    layers: LayerCounts | None = None
    tokenizer: TokenizerFacts | None = None
    template: TemplateFacts | None = None
    memory: MemoryFacts | None = None
    drafts_for: TargetFacts | None = None  # of a drafter
    training: TrainingRecord | None = None  # of a drafter that `spec convert train` made
    images: ImageFacts | None = None  # of an mmproj file
    mmproj: str = ""  # the file beside a model that makes rows for it
    becomes: dict[str, int] = field(default_factory=dict)  # recipe: bytes of the GGUF
    drafters: list[DrafterVerdict] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return all(finding.severity is not Severity.PROBLEM for finding in self.findings)

    @property
    def broken(self) -> list[str]:
        """The problems, and the findings that llama.cpp does not load or run the file with."""
        return [f.text for f in self.findings if _is_broken(f)]

    @property
    def suspicions(self) -> list[str]:
        """The other warnings."""
        return [
            f.text
            for f in self.findings
            if f.severity is Severity.WARNING and not f.breaks_llama_cpp
        ]

    def problem(self, part: Subject, text: str, fix: str = "") -> None:
        self.findings.append(Finding(Severity.PROBLEM, part, text, fix))

    def warning(self, part: Subject, text: str, fix: str = "") -> None:
        self.findings.append(Finding(Severity.WARNING, part, text, fix))

    def refusal(self, text: str) -> None:
        """Note what runs here, and not in llama.cpp."""
        self.findings.append(
            Finding(Severity.WARNING, Subject.LLAMA_CPP, text, breaks_llama_cpp=True)
        )

    def note(self, part: Subject, text: str, fix: str = "") -> None:
        self.findings.append(Finding(Severity.NOTE, part, text, fix))

    def mentions(self, text: str) -> bool:
        return any(text in finding.text for finding in self.findings)

    def has_problem(self, part: Subject) -> bool:
        return any(f.severity is Severity.PROBLEM and f.part is part for f in self.findings)

    def json(self) -> dict[str, Any]:
        record: dict[str, Any] = to_builtins(self)
        return {"sound": self.is_sound} | record


def _is_broken(finding: Finding) -> bool:
    return finding.severity is Severity.PROBLEM or finding.breaks_llama_cpp
