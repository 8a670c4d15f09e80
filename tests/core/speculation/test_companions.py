"""Drafters beside a model's file draft without a flag; those that do not fit are left out."""

from __future__ import annotations

import json
import logging
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.dflash_files import write_dflash
from support.draft_dialects import in_foreign_names, rewrite
from support.eagle3_files import Kind, write_eagle3
from support.network_drafts import GREEDY, N_CTX, SPEC, Tiny, write
from support.vocab import tokenizer_metadata

from nextn.cli.app import run
from nextn.convert.files.output_file import OutputFile
from nextn.convert.files.recombine import detach, extract
from nextn.core import fitting
from nextn.core.errors import ConfigError, ModelError
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Typed, ValueType
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import NO_SPECULATION, SpecOptions


@pytest.fixture
def model(tiny: Tiny, tmp_path: Path) -> Path:
    path = tmp_path / "models" / "model.gguf"
    path.parent.mkdir()
    shutil.copy(tiny("qwen3").path, path)
    return path


def load(model: Path, spec: SpecOptions = SPEC, **options: Any) -> Runtime:
    return load_runtime(model, "cpu", n_ctx=N_CTX, spec=spec, **options)


def drafters_of(runtime: Runtime) -> dict[str, str]:
    """The file of each drafter."""
    return {each.drafter: each.file.path.name for each in runtime.draft_files}


def test_one_of_each_kind_is_found(model: Path) -> None:
    write_eagle3(model.parent / "some-eagle3.gguf", model)
    (model.parent / "draft").mkdir()
    write_dflash(model.parent / "draft" / "block.gguf", model)
    with load(model) as runtime:
        assert drafters_of(runtime) == {"eagle3": "some-eagle3.gguf", "dflash": "block.gguf"}
        assert runtime.spec_types == ("ngram-mod", "dflash", "eagle3")
        want, _ = write(runtime, GREEDY, (), 1)
        got, sources = write(runtime, GREEDY, ("eagle3", "dflash"), 1)
        assert got == want
        assert sources & {"eagle3", "dflash"}
    with load(model, replace(SPEC, types=("eagle3",))) as runtime:
        assert drafters_of(runtime) == {"eagle3": "some-eagle3.gguf"}


def test_a_file_in_foreign_names_is_found(model: Path) -> None:
    _, foreign = in_foreign_names("Lucebox", model, model.parent.parent)
    shutil.copy(foreign, model.parent / "anything.gguf")
    with load(model) as runtime:
        assert drafters_of(runtime) == {"dflash": "anything.gguf"}


@pytest.mark.parametrize("name", ["mtp-model.gguf", "MTP/model.gguf"])
def test_a_head_in_a_file_of_its_own(name: str, tiny: Tiny, tmp_path: Path) -> None:
    with open_gguf(tiny("qwen35", mtp=True).path) as whole:
        detach(whole, OutputFile(tmp_path / "model.gguf", False))
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        extract(whole, OutputFile(path, False))
    with load(tmp_path / "model.gguf") as runtime:
        assert drafters_of(runtime) == {"mtp": path.name}
        assert runtime.spec_types == ("ngram-mod", "mtp")


def test_the_head_in_the_file_comes_first(tiny: Tiny, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(tiny("qwen35", mtp=True).path, model)
    with open_gguf(model) as whole:
        extract(whole, OutputFile(tmp_path / "mtp-model.gguf", False))
    with load(model) as runtime:
        assert not runtime.draft_files
        assert "mtp" in runtime.spec_types


def test_nothing_is_looked_for(model: Path) -> None:
    """With an empty list, with a file that was named, and where no network is to draft."""
    write_eagle3(model.parent / "some-eagle3.gguf", model)
    named = write_dflash(model.parent.parent / "named.gguf", model).path
    with load(model, draft=[]) as runtime:
        assert not runtime.draft_files
    with load(model, draft=named) as runtime:
        assert drafters_of(runtime) == {"dflash": "named.gguf"}
    for spec in (NO_SPECULATION, SpecOptions(types=("ngram-mod",))):
        with load(model, spec) as runtime:
            assert not runtime.draft_files


def of_another_width(path: Path, model: Path) -> None:
    write_eagle3(path, model, target_hidden_size=48)


def of_deeper_models(path: Path, model: Path) -> None:
    write_eagle3(path, model, target_layers=[1, 2, 99])


def of_another_vocabulary(path: Path, model: Path) -> None:
    write_eagle3(path, model)
    words = tokenizer_metadata(["other", "words"])
    other = rewrite(path, path.with_suffix(".new"), lambda k: k | words, str)
    shutil.move(other, path)


def cut_short(path: Path, model: Path) -> None:
    write_eagle3(path, model)
    path.write_bytes(path.read_bytes()[:3000])


def without_a_matrix(path: Path, model: Path) -> None:
    write_eagle3(path, model, block_count=2)


def with_a_number_for(key: str, path: Path, model: Path) -> None:
    write_eagle3(path, model)
    number = Typed(ValueType.U32, 7)
    broken = rewrite(path, path.with_suffix(".new"), lambda k: k | {key: number}, str)
    shutil.move(broken, path)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (partial(with_a_number_for, "general.name"), "'general.name' is "),
        (partial(with_a_number_for, "tokenizer.ggml.tokens"), "tokenizer.ggml.tokens is "),
        (of_another_width, "it reads rows of 48, the model has rows of 64"),
        (of_deeper_models, "it reads layer 99, the model has 2"),
        (of_another_vocabulary, "belongs to another model"),
        (cut_short, "is not used: "),
        (without_a_matrix, "and is left out: "),
    ],
)
def test_one_that_does_not_fit_is_left_out(
    spoil: Any, text: str, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The model runs as if it were not there, and the reason is said."""
    spoil(model.parent / "wrong.gguf", model)
    (model.parent / "notes.gguf").write_text("no GGUF file")
    (model.parent / "folder.gguf").mkdir()
    with caplog.at_level(logging.INFO, "nextn"), load(model) as runtime:
        assert not runtime.draft_files
        assert runtime.spec_types == ("ngram-mod",)
        assert text in caplog.text
        write(runtime, GREEDY, (), 1)


def test_the_smaller_one_unless_another_names_the_model(model: Path) -> None:
    folder = model.parent
    large = write_eagle3(folder / "a.gguf", model, Kind(own_embedding=True)).path
    write_eagle3(folder / "b.gguf", model)
    with load(model) as runtime:
        assert drafters_of(runtime) == {"eagle3": "b.gguf"}
    named = rewrite(model, folder.parent / "n.gguf", lambda k: k | {"general.name": "Tiny 1B"}, str)
    shutil.move(named, model)
    of_model = {"general.base_model.0.name": "tiny 1b"}
    shutil.move(rewrite(large, folder.parent / "d.gguf", lambda k: k | of_model, str), large)
    with load(model) as runtime:
        assert drafters_of(runtime) == {"eagle3": "a.gguf"}


def next_amount(left: list[int]) -> int:
    return left.pop(0) if len(left) > 1 else left[0]


def test_where_memory_is_short_the_model_comes_first(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It runs with all of its context, and without what would take the rest."""
    write_eagle3(model.parent / "e.gguf", model, Kind(own_embedding=True))
    with load(model, draft=[]) as runtime:
        n_bytes = runtime.budget.needed + runtime.backend.mapped_bytes
    for spare, is_used in ((1000, False), (1 << 30, True)):
        left = [1 << 40, n_bytes + spare]  # the system would count the model once it is loaded
        monkeypatch.setattr(fitting, "available_memory", partial(next_amount, left))
        with load(model) as runtime:
            assert bool(runtime.draft_files) == is_used
            assert runtime.n_ctx == N_CTX
    assert "e.gguf lies beside the model, and is left out: " in caplog.text


def test_the_context_is_shortened_for_a_drafter_that_comes_first(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was named, or any with the flag for it."""
    length = {"qwen3.context_length": Typed(ValueType.U32, 4096)}
    model = rewrite(tiny("qwen3").path, tmp_path / "model.gguf", lambda k: k | length, str)
    drafter = write_eagle3(tmp_path / "e.gguf", model, Kind(own_embedding=True)).path
    with load_runtime(model, "cpu", spec=SPEC, draft=[]) as runtime:
        at_first = runtime.budget.needed + runtime.budget.weights
        beside_weights = runtime.budget.needed + runtime.backend.mapped_bytes
    spare = drafter.stat().st_size // 2
    for spec, draft, comes_first in (
        (SPEC, None, False),
        (replace(SPEC, draft_first=True), None, True),
        (SPEC, drafter, True),
    ):
        caplog.clear()
        left = [at_first + spare, beside_weights + spare]
        monkeypatch.setattr(fitting, "available_memory", partial(next_amount, left))
        with load_runtime(model, "cpu", spec=spec, draft=draft) as runtime:
            assert bool(runtime.draft_files) == comes_first
            assert (runtime.n_ctx < 4096) == comes_first
            assert runtime.n_ctx >= fitting.LEAST_CONTEXT
            write(runtime, GREEDY, (), 1)
        text = "4096 do not fit into memory" if comes_first else "e.gguf lies beside the model"
        assert text in caplog.text


def test_the_command_line_names_it(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_eagle3(model.parent / "e.gguf", model).path
    command = ["generate", "-m", str(model), "-n", "4", "-v", "abc"]
    assert run(command) == 0
    line = f"drafter    eagle3: {path} (found beside the model; -md none leaves it out)"
    assert line in capsys.readouterr().err
    assert run([*command, "-md", "none"]) == 0
    assert "drafter " not in capsys.readouterr().err
    path.unlink()
    assert run([*command, "--spec-type", "eagle3"]) == 2
    message = "--spec-type eagle3: give the file of an EAGLE3 drafter for the model with -md"
    assert message in capsys.readouterr().err


def test_a_named_one_that_does_not_fit_is_an_error(model: Path) -> None:
    wrong = write_eagle3(model.parent.parent / "wrong.gguf", model, target_hidden_size=48).path
    with pytest.raises(ModelError, match="its target is 48 wide, the model 64"):
        load(model, draft=wrong)
    with pytest.raises(ConfigError, match="eagle3: give the file"):
        load(model, replace(SPEC, types=("eagle3",))).warm_up()


COSTS = {
    "format": "nextn-costs",
    "step": {"rows": {"1": {"ms": 1.0}, "2": {"ms": 1.2}, "4": {"ms": 1.6}, "17": {"ms": 4.0}}},
    "draft": {"eagle3": {"1": {"1": 0.5, "4": 2.0}}},
}


@pytest.mark.parametrize("is_good", [False, True])
def test_an_idle_drafter_is_named_with_its_reason(
    is_good: bool, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With costs that do not depend on the machine: a random drafter, and one that is right since
    both can write one token alone."""
    written = write_eagle3(model.parent / "e.gguf", model, Kind(n_head=1) if is_good else Kind())
    costs = model.parent / "costs.json"
    costs.write_text(json.dumps(COSTS))
    command = ["generate", "-m", str(model), "-n", "60", "--temp", "0", "--ignore-eos", "abc"]
    command += ["--spec-type", "eagle3", "--spec-costs", str(costs)]
    if is_good:
        assert written.d2t is not None
        command += ["--logit-bias", f"{written.d2t[0]}+1000"]
    assert run(command) == 0
    shown = capsys.readouterr().err
    line = re.search(r"^idle       eagle3: drafts would run at (0\.\d+)x of plain decoding, with "
                     r"(1\.\d+) tokens per step$", shown, re.MULTILINE)  # fmt: skip
    assert (line is None) == is_good, shown
