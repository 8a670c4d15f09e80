"""Our verdict against llama.cpp's: a file that we call refused is refused, a sound one drafts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.every_family import EVERY_FAMILY, EVERY_WITH_MTP, build_family
from support.planted_faults import FAULTS, changed
from support.thoroughness import share
from support.tiny_models import build_tiny

from nextn.convert.files.gguf_facts import GgufFacts
from nextn.convert.files.llama_keys import needed_keys
from nextn.convert.verify import examine, open_anything
from nextn.core import nano
from nextn.core.errors import NextnError
from nextn.core.gguf.reader import open_gguf

pytestmark = pytest.mark.peer
Edit = Callable[[dict[str, Any], dict[str, Any]], None]
# A process for each file: what llama.cpp does not like may end it.
LOAD = """
import json, os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.llama_cpp import LlamaCpp
for path, n_mtp in json.loads(sys.argv[2]):
    child = os.fork()
    if not child:
        try:
            with LlamaCpp(Path(path), n_mtp=n_mtp, n_threads=1) as model:
                os._exit(not model.greedy([5, 6, 7], 8).tokens)
        except BaseException:
            os._exit(1)
    print("result", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, flush=True)
"""


def are_taken(files: list[tuple[Path, int]]) -> list[bool]:
    """Of files, and how many tokens are drafted with the head in each."""
    named = json.dumps([(str(path), n_mtp) for path, n_mtp in files])
    command = [sys.executable, "-c", LOAD, str(Path(__file__).parents[2] / "lib"), named]
    done = subprocess.run(command, capture_output=True, check=True, timeout=600, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return [line[1] == "True" for line in lines if line[:1] == ["result"]]


UNNEEDED = ["qwen2vl: attention.layer_norm_rms_epsilon"]  # which is zero then


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
    assert are_taken([(path, 2)]) == [report.loads_in_llama_cpp], report.findings


@pytest.mark.slow
def test_keys_of_the_table(tmp_path: Path) -> None:
    """Those that a family is said to need, left out of a file that llama.cpp loads with them."""
    files: dict[str, tuple[Path, int]] = {}
    for name in EVERY_FAMILY:
        path = build_family(name, tmp_path).path
        with open_gguf(path) as file:
            architecture = file.metadata.architecture
            keys = dict.fromkeys(needed_keys(GgufFacts(file, has_numbers=False)))
        for key in keys:
            folder = tmp_path / name / key
            folder.mkdir(parents=True)
            files[f"{name}: {key}"] = changed(path, folder, {f"{architecture}.{key}": None}), 0
    assert len(files) > 300
    names = sorted({*share(list(files), 80), *UNNEEDED})
    taken = are_taken([files[name] for name in names])
    assert [name for name, is_taken in zip(names, taken, strict=True) if is_taken] == UNNEEDED


def loads_by_rules(path: Path) -> bool:
    try:
        return examine(open_anything(str(path))).loads_in_llama_cpp
    except NextnError:
        return False


def test_planted_faults_and_sound_files(tmp_path: Path) -> None:
    """Each has its own verdict; all of them at once, for llama.cpp takes a second to start."""
    files: dict[str, tuple[Path, int]] = {}
    for name, fault in FAULTS.items():
        folder = tmp_path / name
        folder.mkdir()
        path = fault.plant(folder)
        if path.is_file() and path.stem not in ("e", "d"):  # no drafter for another file
            files[name] = path, 2 * (name == "a head that was dropped")
    for name in EVERY_FAMILY:
        for mtp in (False, True) if name in EVERY_WITH_MTP else (False,):
            files[f"{name}, {mtp}"] = build_family(name, tmp_path, mtp=mtp).path, 0
    files["the bundled model"] = nano.path(), 2
    assert len(files) > 90
    verdicts = [loads_by_rules(path) for path, _ in files.values()]
    taken = are_taken(list(files.values()))
    assert len(taken) == len(files)
    differ = [n for n, one, other in zip(files, verdicts, taken, strict=True) if one != other]
    assert differ == []
