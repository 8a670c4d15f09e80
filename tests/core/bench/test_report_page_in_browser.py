"""The HTML report as a browser shows it: nothing refused, nothing wider than the window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.bench_reports import report
from support.browser import Browser, browser

from nextn.cli.app import run
from nextn.core.bench.report_page import html_page

pytestmark = [pytest.mark.slow, pytest.mark.browser]
# A label of a plot that another one covers, or that its plot cuts off.
OVERLAPS = """
const found = [];
for (const svg of document.querySelectorAll("svg")) {
  const frame = svg.getBoundingClientRect();
  const labels = [...svg.querySelectorAll("text")].filter((each) => each.textContent.trim());
  const boxes = labels.map((each) => [each.textContent, each.getBoundingClientRect()]);
  for (const [i, [name, a]] of boxes.entries()) {
    if (a.left < frame.left - 1 || a.right > frame.right + 1) found.push(`${name} is cut off`);
    for (const [other, b] of boxes.slice(i + 1)) {
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (wide > 1 && high > 3) found.push(`${name} / ${other}`);
    }
  }
}
return found;
"""
SMALL = ["bench-spec", "--category", "code,edit,maths", "--limit", "1", "-n", "16", "-r", "2", "-q"]


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    argv = [*SMALL, "--vs", "none", "--vs", "ngram-mod,mtp:n=6", "--vs", "auto"]
    assert run([*argv, "--concurrency", "1,2", "--html", str(path)]) == 0
    return path


@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [1200, 500])
def test_a_measured_report(page: Browser, measured: Path, width: int, is_dark: bool) -> None:
    page.resize(width, 900)
    page.dark(is_dark)
    page.open(measured.as_uri())
    check(page)
    assert page.run("return document.querySelectorAll('svg').length") >= 8
    ground = page.run("return getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (not is_dark)


def test_a_report_of_many_names(page: Browser, tmp_path: Path) -> None:
    names = ("none", *(f"ngram-mod,ngram-simple,mtp:n={n},p=0.25,fixed" for n in range(1, 8)))
    path = tmp_path / "report.html"
    path.write_text(html_page(report(names=names)), encoding="utf-8")
    page.resize(1200, 900)
    page.open(path.as_uri())
    check(page)


def check(page: Browser) -> None:
    assert page.log() == []
    assert page.run("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.run(OVERLAPS) == [], json.dumps(page.run("return location.href"))
