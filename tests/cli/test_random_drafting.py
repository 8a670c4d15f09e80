"""Whatever is asked for on the command line: a drafter that was named drafts, or a line says why
it does not."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from support.dflash_files import write_dflash
from support.eagle3_files import Kind, write_eagle3
from support.thoroughness import n_examples

from nextn.cli.app import run
from nextn.core import nano
from nextn.core.speculation.options import ASSISTANT, DRAFTERS

NANO = nano.path()
DATA = Path(__file__).parents[1] / "data"
N_LINES = n_examples(200)
PROMPTS = ("def mean(values):\n    ", "x = 1\nx = 1\nx = 1\n", "a", "import os\nimport os\n")
COSTS = {
    "format": "nextn-costs",
    "step": {"rows": {"1": {"ms": 1.0}, "2": {"ms": 1.2}, "4": {"ms": 1.6}, "17": {"ms": 4.0}}},
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drafters")
    (folder / "costs.json").write_text(json.dumps(COSTS))
    return {
        "costs": folder / "costs.json",
        "eagle3": DATA / "nano-eagle3.gguf",
        "dflash": DATA / "nano-dflash.gguf",
        "draft": DATA / "nano-draft.gguf",
        "random eagle3": write_eagle3(folder / "e.gguf", NANO, Kind(fc_norm=True)).path,
        "random dflash": write_dflash(folder / "d.gguf", NANO).path,
        "misfit of eagle3": write_eagle3(folder / "m.gguf", DATA / "nano-draft.gguf").path,
    }


def draw_line(seed: int, files: dict[str, Path]) -> tuple[list[str], list[str]]:
    """A command line, and of which drafters it has named the type."""
    rng = random.Random(seed)
    words, named = [], []
    if rng.random() < 0.7:
        names = sorted({*DRAFTERS} - {ASSISTANT})
        named = rng.sample(names, rng.choice((1, 1, 2, 3)))
        words += ["--spec-type", ",".join(named)]
    kinds = [name for name in named if name in files and rng.random() < 0.9]
    if not kinds and rng.random() < 0.4:
        kinds = rng.sample(sorted({*files} - {"costs"}), rng.choice((1, 1, 2)))
    for kind in kinds:
        words += ["-md", str(files[kind])]
        named = list(dict.fromkeys((*named, kind.split()[-1])))
    words += ["-n", str(rng.choice((1, 5, 20, 60)))]
    for flag, values in (
        ("--spec-draft-n-max", (0, 1, 3, 8)),
        ("--spec-draft-p-min", (0.0, 0.5, 1.0)),
        ("--spec-ngram-mod-n-match", (2, 24)),
        ("--seed", (1, 2)),
    ):
        if rng.random() < 0.4:
            words += [flag, str(rng.choice(values))]
    words += ["--temp", rng.choice(("0", "0.7"))]
    if rng.random() < 0.3:
        words += ["--spec-fixed"]
    elif rng.random() < 0.5:
        words += ["--spec-costs", str(files["costs"])]
    return [*words, "-s", "7", "-p", rng.choice(PROMPTS)], named


@pytest.mark.parametrize("seed", range(N_LINES))
def test_nothing_is_idle_in_silence(
    seed: int, files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words, named = draw_line(seed, files)
    code = run(["generate", "-m", str(NANO), "-c", "512", "-t", "1", "-v", "--json", *words])
    shown = capsys.readouterr()
    if code:
        assert re.fullmatch(r"(.*\n)*spec: error: .+\n", shown.err), shown.err
        return
    last = json.loads(shown.out.splitlines()[-1])
    drafted = {name: each["drafted"] for name, each in last["by_source"].items()}
    for name in named:
        is_said = re.search(rf"^idle +{name}: .+|^.*\b{name}\b.* not used.*$", shown.err, re.M)
        assert drafted.get(name) or is_said, (words, shown.err)
