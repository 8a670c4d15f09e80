"""The verdict on a file, as data: facts, drafters and findings. `--json` prints it as it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Final

from msgspec import Struct, field, to_builtins

from ...core.models.drafters.training_record import TrainingRecord
from .rules import RULES, Severity


class Subject(StrEnum):
    """The part of a file, or the reader, that a finding is about."""

    MODEL = "model"
    CHAT = "chat"
    HEAD = "mtp"
    DRAFTER = "drafter"
    MMPROJ = "mmproj"
    LLAMA_CPP = "llama.cpp"


class Finding(Struct, frozen=True):
    rule: str  # a name in `RULES`
    severity: Severity
    part: Subject
    text: str
    fix: str = ""  # a command, or what to do
    at: tuple[str, ...] = ()  # the tensors and keys that `text` names
    breaks_llama_cpp: bool = False  # which refuses the file, or aborts with it


# Words that are names: with dots, or with underscores, but no paths and files.
_NAMES: Final = re.compile(r"(?<![\w/.-])[A-Za-z]\w*(?:[_.-][A-Za-z0-9]\w*)*(?![\w/])")
_NO_NAMES: Final = re.compile(r"\.(cpp|json|jinja|md|gguf|safetensors|pt)$")


def names_in(text: str) -> tuple[str, ...]:
    words = (word for word in _NAMES.findall(text) if "." in word or "_" in word)
    return tuple(dict.fromkeys(word for word in words if not _NO_NAMES.search(word)))


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
    fault: str = ""  # the rule that it breaks


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


class ReadFacts(Struct, frozen=True):
    """Numbers that were all looked at."""

    bytes: int
    seconds: float


class TrialFacts(Struct, frozen=True):
    """A short text written with a drafter, and again without."""

    drafter: str  # auto: all of them, under the policy
    lossless: bool
    first_difference: int | None  # place of the token
    tokens: int
    draft_n: int
    draft_n_accepted: int
    mean_accept_len: float
    tokens_per_second: float
    plain_tokens_per_second: float

    @property
    def is_hopeless(self) -> bool:
        """So many drafts and nothing accepted: random weights, or a head of another model."""
        return self.draft_n >= 30 and not self.draft_n_accepted


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
    numbers: ReadFacts | None = None  # where all of them were read
    trials: list[TrialFacts] = field(default_factory=list)
    not_tried: str = ""  # why nothing was run, where that was wanted
    ignored: list[str] = field(default_factory=list)  # rules that were broken and are not counted

    @property
    def is_sound(self) -> bool:
        """Whether nothing is broken here."""
        return not self.of(Severity.BROKEN)

    @property
    def loads_in_llama_cpp(self) -> bool:
        """As far as rules know it."""
        return not any(finding.breaks_llama_cpp for finding in self.findings)

    @property
    def is_clean(self) -> bool:
        """Whether there are notes at most."""
        return all(finding.severity is Severity.NOTE for finding in self.findings)

    @property
    def broken(self) -> list[str]:
        """What is broken, here or in llama.cpp."""
        return self.of(Severity.BROKEN) + self.of(Severity.LLAMA_CPP)

    @property
    def suspicions(self) -> list[str]:
        return self.of(Severity.SUSPICIOUS)

    def of(self, severity: Severity) -> list[str]:
        """Texts of findings."""
        return [f.text for f in self.findings if f.severity is severity]

    def add(self, rule: str, part: Subject, text: str, fix: str = "") -> None:
        """A finding of a rule. `text` names tensors and keys as they are in the file."""
        how = RULES[rule]
        stops = how.stops_llama_cpp or how.severity is Severity.LLAMA_CPP
        self.findings.append(Finding(rule, how.severity, part, text, fix, names_in(text), stops))

    def ignore(self, rules: Iterable[str]) -> None:
        """Take what these rules found out of the verdict."""
        names = frozenset(rules)
        self.ignored = sorted({f.rule for f in self.findings if f.rule in names})
        self.findings = [f for f in self.findings if f.rule not in names]

    def mentions(self, text: str) -> bool:
        return any(text in finding.text for finding in self.findings)

    def has_broken(self, part: Subject) -> bool:
        return any(f.severity is Severity.BROKEN and f.part is part for f in self.findings)

    def json(self) -> dict[str, Any]:
        record: dict[str, Any] = to_builtins(self)
        return {"sound": self.is_sound, "llama_cpp": self.loads_in_llama_cpp} | record
