"""The file of `--spec-costs`: a cost model that is kept, so that decisions repeat exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from ..errors import ConfigError
from ..gguf.atomic_write import atomic_write
from ..gguf.read_bounded import read_bounded
from .policy.costs import Cell, CostModel, DraftLine, Slope

_MAX_BYTES: Final = 1 << 24
_Count = Annotated[int, msgspec.Meta(ge=1, le=4096)]
_Ms = Annotated[float, msgspec.Meta(gt=0, lt=1e9)]
_Number = Annotated[float, msgspec.Meta(ge=0, lt=1e9)]


class StepCost(msgspec.Struct):
    ms: _Ms
    n_ctx: _Number = 0.0


class StepCosts(msgspec.Struct):
    rows: Annotated[dict[_Count, StepCost], msgspec.Meta(min_length=1)]
    context_ms: _Number = 0.0  # per token of context
    context_row_ms: _Number = 0.0  # the same, for each row


class CostFile(msgspec.Struct):
    """What `--spec-costs` keeps."""

    step: StepCosts
    draft: dict[str, dict[_Count, dict[_Count, _Ms]]] = {}  # by source, sequences and tokens
    catch_up: dict[str, _Number] = {}  # ms per row that a source has to read
    format: Literal["nextn-costs"] = "nextn-costs"


def save_costs(costs: CostModel, path: str | Path) -> None:
    curve = costs.curve
    slope = curve.slope()
    rows = {
        n: StepCost(cell.level(cell.mean_context, slope.of(n)), cell.mean_context)
        for n, cell in sorted(curve.cells.items())
    }
    drafts = {
        source: {
            n: {k: cell.level() for k, cell in sorted(line.cells.items())}
            for n, line in sorted(lines.items())
        }
        for source, lines in sorted(costs.draft_lines.items())
    }
    reading = {source: costs.reading(source, 1) for source in sorted(costs.read_rows)}
    content = CostFile(StepCosts(rows, *slope), drafts, reading)
    with atomic_write([Path(path)], overwrite=True) as (file,):
        file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


def load_costs(path: str | Path) -> CostModel:
    """A frozen model; a ConfigError says what is wrong with the file."""
    try:
        content = msgspec.json.decode(read_bounded(Path(path), _MAX_BYTES), type=CostFile)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: is not a file of costs: {error}") from None
    costs, step = CostModel(), content.step
    for n, cost in step.rows.items():
        cell = costs.curve.cells[n] = Cell()
        cell.add(cost.ms, cost.n_ctx, 0)
        cell.is_given = True
    costs.curve.given_slope = Slope(step.context_ms, step.context_row_ms)
    for source, lines in content.draft.items():
        for n, cells in lines.items():
            line = costs.draft_lines.setdefault(source, {})[n] = DraftLine()
            for k, ms in cells.items():
                line.add(k, ms)
    costs.read_rows = {source: [ms] for source, ms in content.catch_up.items()}
    costs.is_frozen = True
    return costs
