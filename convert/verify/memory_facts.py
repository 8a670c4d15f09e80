"""What a file takes in memory when it runs: of architectures that run here by their own account,
of others by their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...core.errors import NextnError
from ...core.gguf.printable import listing
from ...core.models import ARCHITECTURES, survey_model
from ...core.models.demand import Demand
from ...core.models.model_weights import is_no_part_of_text
from ...core.state.sizes import PAGE_LEN, WINDOW, StateSizes
from ..files.gguf_facts import GgufFacts
from .verdict import FileReport, MemoryFacts, Subject

if TYPE_CHECKING:
    from ...core.backend.layers import StateShape
    from ...core.models import Survey
    from ...core.models.model import Model
    from ...core.models.model_weights import Inventory

_USUAL_CONTEXT: Final = 8192  # tokens, where a run sets no context
_CHECKPOINTS: Final = 2  # states that a run keeps beside the one of its sequence


def survey(facts: GgufFacts, report: FileReport) -> Survey | None:
    """The model without its numbers; new faults go into the report."""
    if facts.architecture not in ARCHITECTURES:
        return None
    try:
        found = survey_model(facts.file)
    except NextnError as error:
        text = str(error).removeprefix(f"{facts.file.label}: ")
        if not any(text in finding.text or finding.text in text for finding in report.findings):
            report.add("load-refused", Subject.MODEL, text)
        return None
    except (ArithmeticError, ValueError) as error:
        report.add("load-refused", Subject.MODEL, f"the keys make no sense together: {error}")
        return None
    said = " ".join(finding.text for finding in report.findings)
    head = tuple(f"blk.{n}." for n in (*facts.marked, *facts.head_blocks))
    findings = found.weights.findings

    def part_of(text: str) -> Subject:
        return Subject.HEAD if text.startswith(head) else Subject.MODEL

    missing = [name for name in findings.missing if name not in said]
    for part in (Subject.HEAD, Subject.MODEL):
        names = [name for name in missing if part_of(name) is part]
        if names and not (part is Subject.HEAD and report.has_broken(Subject.HEAD)):
            report.add("tensor-missing", part, f"tensors are missing: {listing(names)}")
    for text in findings.misshapen:
        if text.split(" ")[0] not in said:
            report.add("tensor-shape", part_of(text), text)
    _check_unused(facts, found, report)
    return found


def _check_unused(facts: GgufFacts, found: Survey, report: FileReport) -> None:
    used, missing = found.weights.findings.used, found.weights.findings.missing
    names = facts.file.tensors
    unused = [n for n in names if n not in used and not is_no_part_of_text(n, facts.file)]
    if unused and not missing and facts.n_nextn == len(facts.marked):
        report.add(
            "tensor-unused",
            Subject.MODEL,
            f"architecture {facts.architecture} does not use {listing(unused)}: leaving them out "
            "would change the text, so the file is not run",
        )


def memory_of(facts: GgufFacts, found: Survey | None) -> MemoryFacts:
    context = min(facts.whole("context_length") or _USUAL_CONTEXT, _USUAL_CONTEXT)
    if found is None:
        stored = sum(tensor.n_bytes for tensor in facts.file.tensors.values())
        kv = _estimate_kv(facts)
        return MemoryFacts(
            stored, kv, 0, 0, context, stored + kv * context // 1024, is_estimate=True
        )
    from ...core.backend import create_backend

    backend, shape = create_backend("cpu"), found.model.state_shape
    page, slot = backend.state_bytes(shape, page_len=PAGE_LEN, window=WINDOW)
    _, bare = backend.state_bytes(shape, page_len=PAGE_LEN, window=0)
    weights = Demand.of(found.model, found.inventory, backend).weight_bytes
    sizes = StateSizes(context, 1, _CHECKPOINTS if shape.recurrent else 0)
    total = weights + sizes.n_pages * page + (1 + sizes.n_checkpoints) * slot
    return MemoryFacts(weights, page * (1024 // PAGE_LEN), bare, slot - bare, context, total)


def memory_of_networks(inventory: Inventory, model: Model, state: StateShape) -> tuple[int, int]:
    """Bytes of a drafter's weights, and of 1024 tokens' keys and values, beside a model's."""
    from ...core.backend import create_backend

    backend = create_backend("cpu")
    page, _ = backend.state_bytes(state, page_len=PAGE_LEN, window=WINDOW)
    return Demand.of(model, inventory, backend).weight_bytes, page * (1024 // PAGE_LEN)


def _estimate_kv(facts: GgufFacts) -> int:
    """Bytes of 1024 tokens' keys and values in half precision, windows not counted as such."""
    rank, rope = facts.whole("attention.kv_lora_rank"), facts.whole("rope.dimension_count") or 0
    n_blocks = facts.n_blocks or 0
    if rank:  # MLA keeps one row for keys and values
        return 1024 * 2 * n_blocks * (rank + rope)
    heads = facts.per_block("attention.head_count_kv") or facts.per_block("attention.head_count")
    n_heads, width = facts.per_block("attention.head_count"), facts.whole("embedding_length") or 0
    first = int(n_heads[0]) if n_heads and n_heads[0] else 1
    key = facts.whole("attention.key_length") or width // first
    value = facts.whole("attention.value_length") or width // first
    return 1024 * 2 * sum(int(n) for n in heads) * (key + value)
