"""Our verdict against llama.cpp's: a file that we call refused is refused, a sound one drafts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import build_tiny

from nextn.convert.verify import examine, open_anything

pytestmark = pytest.mark.peer
Edit = Callable[[dict[str, Any], dict[str, Any]], None]
LOAD = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.llama_cpp import LlamaCpp
with LlamaCpp(Path(sys.argv[1]), n_mtp=int(sys.argv[3])) as model:
    assert model.greedy([5, 6, 7], 8).tokens
"""


def is_taken(path: Path, n_mtp: int) -> bool:
    """In a process of its own: what llama.cpp does not like may end it."""
    support = str(Path(__file__).parents[2] / "lib")
    command = [sys.executable, "-c", LOAD, str(path), support, str(n_mtp)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=600)
    return done.returncode == 0


def edited(change: dict[str, Any], gone: tuple[str, ...] = ()) -> Edit:
    def edit(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        for key, value in change.items():
            keys.pop(f"qwen35.{key}", None)
            if value is not None:
                keys[f"qwen35.{key}"] = value
        for name in [n for n in tensors if gone and n.startswith(gone)]:
            del tensors[name]

    return edit


CASES: list[tuple[str, Edit]] = [
    ("sound", edited({})),
    ("the head dropped, the key left", edited({}, ("blk.4.",))),
    ("no sections", edited({"rope.dimension_sections": None})),
    ("arrays too short", edited({"attention.head_count_kv": [2, 2, 2, 2]})),
    ("enorm gone", edited({}, ("blk.4.nextn.enorm",))),
    ("attn_q of the head gone", edited({}, ("blk.4.attn_q.",))),
    ("not counted", edited({"block_count": 4})),
    ("a hole in the trunk", edited({}, ("blk.1.ffn_up",))),
    ("norm of the head gone, which is optional", edited({}, ("blk.4.nextn.shared_head_norm",))),
]


@pytest.mark.parametrize("edit", [pytest.param(case[1], id=case[0]) for case in CASES])
def test_as_llama_cpp_sees_it(edit: Edit, tmp_path: Path) -> None:
    path = build_tiny("qwen35", tmp_path, mtp=True, edit=edit).path
    report = examine(open_anything(str(path)))
    assert is_taken(path, n_mtp=2) == report.loads_in_llama_cpp, report.findings
