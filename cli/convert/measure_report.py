"""The lines and the record of `spec convert measure`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, to_builtins

from .measured_models import ComparedModel
from .writing import size

if TYPE_CHECKING:
    from ...convert.measure.fidelity import Estimate, Fidelity
    from ...core.bench.record import GateResult

_QUANTILES: Final = {0.5: "median", 0.9: "90 %", 0.99: "99 %", 1.0: "maximum"}
_KEYS: Final = {0.5: "median", 0.9: "p90", 0.99: "p99", 1.0: "max"}


class Measurement(Struct, frozen=True):
    measured: ComparedModel
    base: ComparedModel
    text: str
    n_ctx: int
    fidelity: Fidelity
    seconds: float


def fidelity_lines(found: Measurement) -> Iterator[str]:
    figures = found.fidelity
    yield f"measured  {_model_line(found.measured)}"
    yield f"against   {_model_line(found.base)}"
    yield (
        f"text      {found.text}, {figures.n_chunks} "
        f"{'chunk' if figures.n_chunks == 1 else 'chunks'} of {found.n_ctx} tokens, "
        f"{figures.n_tokens} tokens scored"
    )
    yield ""
    yield f"{'':24}{'value':>11}   {'error':<9}  95 % interval"
    yield _row("perplexity", figures.perplexity, ".4f")
    yield _row("perplexity of the base", figures.base_perplexity, ".4f")
    yield _row("ln of their ratio", figures.ln_ratio, ".6f")
    yield _row("KL divergence, mean", figures.kl, ".6f")
    for level, value in figures.kl_quantiles.items():
        yield f"  {_QUANTILES[level]:22}{value:11.6f}"
    yield _row("same top token", figures.same_top, ".2%")
    yield _row("\N{GREEK CAPITAL LETTER DELTA}p, mean", figures.delta_p, ".3%")
    yield _row("\N{GREEK CAPITAL LETTER DELTA}p, RMS", figures.rms_delta_p, ".3%")


def _model_line(model: ComparedModel) -> str:
    made = f", converted to {model.converted_to}" if model.converted_to else ""
    return (
        f"{model.name} on {model.device}: {model.architecture}{made}, {size(model.bytes)}, "
        f"{model.bits_per_weight:.2f} bits per weight"
    )


def _row(title: str, found: Estimate, form: str) -> str:
    line = f"{title:24}{found.value:>11{form}} \N{PLUS-MINUS SIGN} {found.error:<9{form}}"
    if found.low is not None and found.high is not None:
        line += f"  {found.low:{form}} to {found.high:{form}}"
    return line.rstrip()


def measurement_record(found: Measurement, gates: Sequence[GateResult]) -> dict[str, Any]:
    figures = found.fidelity
    quantiles = {_KEYS[level]: value for level, value in figures.kl_quantiles.items()}
    return {
        "measured": _model_record(found.measured),
        "against": _model_record(found.base),
        "text": found.text,
        "ctx_size": found.n_ctx,
        "chunks": figures.n_chunks,
        "tokens": figures.n_tokens,
        "perplexity": _record(figures.perplexity),
        "against_perplexity": _record(figures.base_perplexity),
        "ln_ratio": _record_with_interval(figures.ln_ratio),
        "kl": _record_with_interval(figures.kl) | quantiles,
        "same_top": _record_with_interval(figures.same_top),
        "delta_p": _record(figures.delta_p),
        "rms_delta_p": _record(figures.rms_delta_p),
        "gates": [{"gate": each.gate, "ok": each.ok, "line": each.line} for each in gates],
        "seconds": round(found.seconds, 3),
    }


def _model_record(model: ComparedModel) -> dict[str, Any]:
    record = to_builtins(model)
    return {"file": record.pop("name"), **record}


def _record(found: Estimate) -> dict[str, Any]:
    return {"value": found.value, "error": found.error}


def _record_with_interval(found: Estimate) -> dict[str, Any]:
    return _record(found) | {"interval": None if found.low is None else [found.low, found.high]}
