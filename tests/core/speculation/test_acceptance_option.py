"""`--spec-accept` as it is written."""

from __future__ import annotations

import pytest

from nextn.core.errors import ConfigError
from nextn.core.speculation.acceptance import Acceptance, parse_accept
from nextn.core.speculation.options import SpecOptions


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("match", Acceptance()),
        (" Ratio ", Acceptance("ratio")),
        ("relaxed", Acceptance("relaxed", 10, 0.6)),
        ("relaxed:5", Acceptance("relaxed", 5, 0.6)),
        ("relaxed:5,0.25", Acceptance("relaxed", 5, 0.25)),
        ("relaxed:5, 1, always", Acceptance("relaxed", 5, 1.0, always=True)),
        ("relaxed:always", Acceptance("relaxed", always=True)),
        ("relaxed:3,always", Acceptance("relaxed", 3, always=True)),
    ],
)
def test_forms(text: str, want: Acceptance) -> None:
    assert parse_accept(text) == want
    assert SpecOptions(accept=text).acceptance(()) == want


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is unknown; known: match, ratio, relaxed"),
        ("typical", "unknown"),
        ("match:1", "unknown"),
        ("relaxed:", "no relaxed:top_n,delta"),
        ("relaxed:x", "no relaxed:top_n,delta"),
        ("relaxed:1.5", "no relaxed:top_n,delta"),
        ("relaxed:0", "top_n must be at least 1, got 0"),
        ("relaxed:-3,0.5", "top_n must be at least 1, got -3"),
        ("relaxed:3,1.5", "delta must be between 0 and 1, got 1.5"),
        ("relaxed:3,nan", "delta must be between 0 and 1"),
        ("relaxed:3,0.5,7", "too many"),
        ("relaxed:always,3", "no relaxed:top_n,delta"),
    ],
)
def test_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        SpecOptions(accept=text)
    assert "\n" not in str(caught.value)


def test_only_lossy_modes_warn() -> None:
    warnings = {text: parse_accept(text).warning for text in ("match", "ratio", "relaxed")}
    assert warnings["match"] == warnings["ratio"] == ""
    assert "lossy: in the thinking phase" in warnings["relaxed"]
    assert "lossy: everywhere" in parse_accept("relaxed:2,0.1,always").warning
