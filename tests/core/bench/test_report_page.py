"""The page: well formed, of one file, and with every figure that a report has."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from support.bench_reports import report

from nextn.core.bench.record import BenchReport, CurvePoint, GateResult, Interval
from nextn.core.bench.report_charts import report_charts
from nextn.core.bench.report_page import html_page
from nextn.core.bench.scale import scale_for, short

VOID = {"meta", "link", "br"}
HOSTILE = "<script>alert('x')</script>\"&"


class Checked(HTMLParser):
    """Tags that are opened are closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def full_report() -> BenchReport:
    made = report(users=(1, 2, 4))
    made.curve = [
        CurvePoint(n, length, length, Interval(0.9, 0.3 * length + 0.5, 1.2), 2.0)
        for n in (1, 3)
        for length in (1.0, 1.5, 2.0)
    ]
    made.gates = [GateResult("min-speedup", "mtp:n=3", False, "1.1 < 1.2")]
    made.warnings = ["noise too high"]
    return made


def checked(page: str) -> Checked:
    found = Checked()
    found.feed(page)
    found.close()
    assert found.open == []
    return found


@pytest.mark.parametrize("made", [full_report(), report(names=("only",)), report(n_prompts=1)])
def test_it_is_well_formed(made: BenchReport) -> None:
    found = checked(html_page(made))
    assert "script" not in found.tags
    names = {name for name, _ in found.attributes}
    assert names.isdisjoint({"src", "href", "onload", "onclick"})


def test_it_needs_no_network() -> None:
    page = html_page(full_report())
    assert not re.search(r"https?://|@import|url\(", page)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme:dark" in page
    assert "width=device-width" in page


def test_every_plot_is_there_and_is_xml() -> None:
    drawn = dict(report_charts(full_report()))
    assert all(drawn.values()), [title for title, figures in drawn.items() if not figures]
    for figures in drawn.values():
        for figure in figures:
            root = ElementTree.fromstring(figure.svg)
            _, _, width, height = map(float, root.attrib["viewBox"].split())
            for each in root.iter():
                for name, size in (("x", width), ("cx", width), ("x2", width), ("y", height)):
                    if name in each.attrib:
                        assert 0 <= float(each.attrib[name]) <= size, (figure.title, each.attrib)


def test_what_it_says() -> None:
    page = html_page(full_report())
    for expected in ("FAIL min-speedup", "noise too high", "tiny.gguf", "it&#x27;s", "a processor",
                 "mtp", "1.50", "f" * 64):  # fmt: skip
        assert expected in page, expected


def test_names_are_text() -> None:
    made = report(names=("none", HOSTILE))
    made.provenance["model_filename"] = HOSTILE
    made.warnings = [HOSTILE]
    made.configurations[1].details[HOSTILE] = HOSTILE
    assert "script" not in checked(html_page(made)).tags


def test_a_report_of_nothing() -> None:
    made = report(n_prompts=0)
    checked(html_page(made))


def test_scales() -> None:
    scale = scale_for([1.0, 2.0], 0, 100, also=0.0)
    assert scale(0.0) == 0
    assert 0 < scale(1.0) < scale(2.0) < 100
    assert scale.ticks(4) == [0.0, 1.0, 2.0]
    assert scale_for([], 0, 1).ticks()
    assert scale_for([3.0, 3.0], 0, 1)(3.0) == pytest.approx(0.5)
    assert scale_for([float("nan"), 1.0, float("inf")], 0, 1)(1.0) == pytest.approx(0.5)


NUMBERS = [(0, "0"), (0.0123, "0.012"), (1.234, "1.23"), (56.78, "56.8"), (1234.5, "1234"),
           (45678, "46k")]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), NUMBERS)
def test_numbers(value: float, expected: str) -> None:
    assert short(value) == expected
