"""The table in docs/kernels.md is true."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from nextn.cuda_kernels.compile import Cubin, nvrtc_version
from nextn.cuda_kernels.kernel import Source
from nextn.cuda_kernels.table import BEGIN, END, rewritten, table

PAGE = Path(__file__).parents[2] / "docs" / "kernels.md"
Cubins = Mapping[tuple[Source, int], Cubin]


@pytest.mark.slow
def test_the_page_is_true(cubins: Cubins) -> None:
    page = PAGE.read_text(encoding="utf-8")
    written = f"compiled by NVRTC {'.'.join(map(str, nvrtc_version()))} "
    if written not in page:
        pytest.skip("the page was written with another NVRTC, which may allot other registers")
    command = "python -m nextn.cuda_kernels.table docs/kernels.md"
    assert page == rewritten(page, cubins), f"run: {command}"


def test_only_what_is_between_the_marks_is_written(cubins: Cubins) -> None:
    page = f"before\n{BEGIN}old\n{END}after\n"
    new = rewritten(page, cubins)
    assert new == f"before\n{BEGIN}\n{table(cubins)}\n{END}after\n"
    assert rewritten(new, cubins) == new
    with pytest.raises(ValueError, match="the page has no"):
        rewritten("nothing", cubins)
