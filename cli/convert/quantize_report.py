"""The lines and records of `spec convert quantize`: its plan and its result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ...core.errors import ConfigError
from ...core.gguf.printable import listing
from ..console import Console
from .writing import finish, quoted, size

if TYPE_CHECKING:
    from ...convert.quantize.quantize_file import QuantizeResult
    from ...convert.quantize.quantize_plan import PlanItem, QuantizePlan

_NAMES_SHOWN: Final = 3


def say_remarks(plan: QuantizePlan, output: Console) -> None:
    """Print what the user may not have meant."""
    requantised = [item for item in plan.items if item.is_requantised]
    if requantised and plan.options.allows_requantising:
        output.remark(
            f"warning: quantised already: {_tensors(requantised)}; quantising again costs more "
            "quality than starting from an F16 or BF16 file"
        )
    for format_name, names in fallbacks(plan).items():
        output.remark(
            f"note: {_tensors(names)} become {format_name}, because their rows do not fit the "
            f"requested type: {listing(names, _NAMES_SHOWN)}"
        )
    if plan.head_remark:
        output.remark(plan.head_remark)
    for line in plan_lines(plan)[:-1]:
        output.note(line)
    for rule in plan.unused_rules:
        output.remark(f"warning: --tensor-type {rule} fits no tensor that is left to it")
    unknown = plan.without_importance()
    if unknown:
        output.remark(f"not in the importance matrix: {listing(unknown, _NAMES_SHOWN)}")


def say_refusal(plan: QuantizePlan, output: Console) -> None:
    """Print the error that a run without --dry-run would end with."""
    from ...convert.quantize.quantize_plan import check_plan

    try:
        check_plan(plan)
    except ConfigError as error:
        output.remark(f"warning: this would be refused: {error}")


def fallbacks(plan: QuantizePlan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in plan.items:
        if item.is_fallback:
            found.setdefault(item.format.name, []).append(item.tensor.name)
    return found


def _tensors(found: Sequence[object]) -> str:
    return "1 tensor" if len(found) == 1 else f"{len(found)} tensors"


def plan_lines(plan: QuantizePlan) -> list[str]:
    """A row for each tensor, then the sum."""
    rows = [
        (item.tensor.name, _shape(item), item.tensor.format.name, item.format.name, item.why)
        for item in plan.items
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(4)]
    lines = [
        f"{name:{widths[0]}}  {shape:>{widths[1]}}  {old:{widths[2]}}  "
        f"{'=' if old == new else '>'} {new:{widths[3]}}  {why}".rstrip()
        for name, shape, old, new, why in rows
    ]
    return [*lines, sum_line(plan)]


def _shape(item: PlanItem) -> str:
    return " x ".join(map(str, reversed(item.tensor.shape)))


def sum_line(plan: QuantizePlan) -> str:
    counts = Counter(item.format.name for item in plan.items)
    kinds = ", ".join(f"{n} {name}" for name, n in counts.most_common())
    return f"{size(plan.n_bytes)}, {plan.bits_per_weight:.2f} bits per weight: {kinds}"


def plan_record(plan: QuantizePlan) -> dict[str, Any]:
    recipe = plan.options.recipe
    return {
        "type": "COPY" if recipe is None else recipe.name,
        "tensor_bytes": plan.n_bytes,
        "weights": plan.n_elements,
        "bits_per_weight": plan.bits_per_weight,
        "types": _types_record(plan),
        "requantized": [item.tensor.name for item in plan.items if item.is_requantised],
        "fallbacks": {name: kind for kind, names in fallbacks(plan).items() for name in names},
        "head_types": plan.head_types,
        "without_importance": plan.without_importance(),
        "unused_rules": list(plan.unused_rules),
    }


def tensors_record(plan: QuantizePlan) -> list[dict[str, Any]]:
    return [
        {
            "name": item.tensor.name,
            "shape": list(item.tensor.shape),
            "from": item.tensor.format.name,
            "to": item.format.name,
            "bytes": item.n_bytes,
            "why": item.why,
        }
        for item in plan.items
    ]


def _types_record(plan: QuantizePlan) -> dict[str, dict[str, Any]]:
    types: dict[str, dict[str, Any]] = {}
    for item in plan.items:
        row = types.setdefault(item.format.name, {"tensors": 0, "weights": 0, "bytes": 0})
        row["tensors"] += 1
        row["weights"] += item.tensor.n_elements
        row["bytes"] += item.n_bytes
    return types


def finish_run(
    plan: QuantizePlan, result: QuantizeResult, output: Console, *, as_json: bool
) -> None:
    rate = result.source_bytes / max(result.seconds, 1e-9)
    recipe = plan.options.recipe
    kind = "" if recipe is None else f"{recipe.name}, "
    what = f"{kind}{sum_line(plan)} in {result.seconds:.1f} s, {size(rate)}/s of input"
    command = f"spec convert check {quoted(result.paths[0])}"
    more = result_record(plan, result)
    finish(output, result.paths, what, command, as_json=as_json, **more)
    for line in () if as_json else error_lines(result):
        output.line(line)


def error_lines(result: QuantizeResult) -> list[str]:
    return [
        f"{kind:6}  error {errors.rms:.3e} RMS, {errors.relative:.4%} of the weights'"
        for kind, errors in sorted(result.errors.items())
    ]


def result_record(plan: QuantizePlan, result: QuantizeResult) -> dict[str, Any]:
    found = plan_record(plan)
    for kind, errors in result.errors.items():
        found["types"][kind] |= {
            "rms_error": errors.rms, "relative_error": errors.relative, "measured": errors.n,
        }  # fmt: skip
    return found | {"source_bytes": result.source_bytes, "seconds": round(result.seconds, 3)}
