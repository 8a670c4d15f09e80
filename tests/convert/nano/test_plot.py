"""The picture of the loss curve."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from nextn.convert.nano.plot import SMOOTH, draw, series


def test_a_curve_becomes_lines() -> None:
    curve = [
        {"tokens": 1000 * i, "trunk": 0.0 if i > 80 else 8 - i / 20, "mtp": 8.0, "held_out": None}
        for i in range(1, 101)
    ]
    curve[0]["held_out"] = 8.3
    curve[50]["held_out"] = 6.1
    lines = series(curve)
    assert len(lines["trunk"]) == 80 // SMOOTH  # the part that trained the head alone has no loss
    assert len(lines["mtp"]) == 100 // SMOOTH
    assert lines["held_out"] == [(0.001, 8.3), (0.051, 6.1)]
    root = ET.fromstring(draw(lines))
    assert len([e for e in root if e.tag.endswith("polyline")]) == 3
