"""Files of drafters: what is said of them, what is wrong with them, and whether models fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.converting import check_line, convert
from support.draft_checkpoints import CASES, TOP_K, DraftCheckpoint, build_draft_checkpoint
from support.eagle3_files import Kind, write_eagle3
from support.tiny_gemma import build_gemma
from support.tiny_models import build_tiny

from nextn.convert.files.model_parts import parts_of
from nextn.convert.hf.drafters import open_target
from nextn.convert.verify import FileReport, examine, open_anything
from nextn.convert.verify.verdict import Subject
from nextn.core.errors import ModelError
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Typed, ValueType
from nextn.core.gguf.writer import TensorData, write_gguf

I64 = find_format("I64")
F32 = find_format("F32")
Parts = tuple[dict[str, Any], dict[str, TensorData]]
Change = Callable[[dict[str, Any], dict[str, TensorData]], None]


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("drafters")

    @cache
    def build(name: str) -> Path:
        made: DraftCheckpoint = build_draft_checkpoint(name, folder)
        target = open_target(str(made.target))
        return convert(made.folder, folder / f"{name}.gguf", target=target)

    return build


def verdict_on(path: Path, draft: Path | None = None) -> FileReport:
    return examine(open_anything(str(path)), draft and open_anything(str(draft)))  # type: ignore[arg-type]


def changed(source: Path, out: Path, change: Change) -> Path:
    with open_gguf(source) as file:
        keys: dict[str, Any] = {key: file.metadata.typed(key) for key in file.metadata}
        tensors = {name: TensorData.of(tensor) for name, tensor in file.tensors.items()}
        change(keys, tensors)
        write_gguf(out, keys, list(tensors.values()))
    return out


# What llama.cpp says of those that it does not load.
ONLY_HERE = {
    "eagle3.1-speculators": ["each tapped row has a norm", "drafted rows go on", "have a window"],
    "eagle3-deepspec": ["it reads 5 layers of the target, llama.cpp knows", "its heads have norms"],
    "eagle3-two-layers": ["it has 2 layers, llama.cpp knows EAGLE3 with one", "drafted rows go on"],
}


@pytest.mark.parametrize("name", CASES)
def test_a_converted_file_is_sound(name: str, file_of: Callable[[str], Path]) -> None:
    report = verdict_on(file_of(name))
    assert (report.kind, report.architecture) == ("drafter", CASES[name].architecture)
    expected = ONLY_HERE.get(name, [])
    for finding, text in zip(report.findings, expected, strict=True):
        assert text in finding.text
        assert finding.part is Subject.LLAMA_CPP
    assert any(finding.breaks_llama_cpp for finding in report.findings) == bool(expected)
    (drafter,) = report.drafters
    assert drafter.name == report.architecture
    assert drafter.works == report.runs_here
    target = report.drafts_for
    assert target is not None
    assert target.width == (80 if name == "eagle3-normed" else 64)
    assert target.vocabulary == 512


def test_what_is_said(file_of: Callable[[str], Path]) -> None:
    eagle3 = verdict_on(file_of("eagle3-specforge"))
    assert eagle3.what == "an EAGLE3 drafter for another model"
    assert eagle3.drafts_for is not None
    assert eagle3.drafts_for.layers == (2, 4, 5)
    assert (eagle3.drafts_for.head, eagle3.drafts_for.shares) == (96, ("embeddings",))
    path = file_of("eagle3-specforge")
    assert eagle3.drafters[0].command == f"spec generate -m MODEL.gguf -md {path}"
    for name, words, most in (
        ("dflash", "a DFlash drafter", 7),
        ("dflash2", "a DFlash2 drafter", 7),
        ("dspark-deepspec", "a DSpark drafter", 8),
        ("dspark-speculators", "a DSpark drafter", 7),
    ):
        report = verdict_on(file_of(name))
        assert report.what == f"{words} for another model"
        assert report.drafts_for is not None
        assert (report.drafts_for.block_size, report.drafts_for.most) == (8, most)
        assert report.drafts_for.mask == 300
    assert verdict_on(file_of("assistant")).what == "a Gemma 4 assistant for another model"
    assert json.dumps(verdict_on(file_of("dflash")).json())


# What is wrong -----------------------------------------------------------------------------------


def key(name: str, value: Any) -> Change:
    return lambda keys, tensors: keys.update({name: value})


def no_key(name: str) -> Change:
    def change(keys: dict[str, Any], tensors: dict[str, TensorData]) -> None:
        del keys[name]

    return change


def no_tensor(*names: str) -> Change:
    def change(keys: dict[str, Any], tensors: dict[str, TensorData]) -> None:
        for name in names:
            del tensors[name]

    return change


def tensor(name: str, *shape: int) -> Change:
    return lambda keys, tensors: tensors.update(
        {name: TensorData(name, shape, F32, np.ones(shape, np.float32))}
    )


def token(row: int, value: int) -> Change:
    def change(keys: dict[str, Any], tensors: dict[str, TensorData]) -> None:
        found = tensors["d2t"]
        ids = np.frombuffer(b"".join(map(bytes, found.pieces())), "<i8").copy()  # type: ignore[arg-type]
        ids[row] = value
        tensors["d2t"] = replace(found, data=ids)

    return change


EAGLE, FLASH = "eagle3-specforge", "dflash"
NO_LAYERS = Typed(ValueType.ARRAY, np.zeros(0, np.int32), ValueType.I32)
PROBLEMS: list[tuple[str, Change, str]] = [
    (EAGLE, token(5, 700), "d2t[5] is 700, expected a token of the target, 0 to 511"),
    (EAGLE, token(5, -1), "d2t[5] is -1, expected"),
    (EAGLE, lambda k, t: token(0, first_token(t))(k, t), "d2t names token"),
    (EAGLE, tensor("d2t", 96), "d2t is F32, expected whole numbers"),
    (EAGLE, no_tensor("output.weight"), "tensors are missing: output.weight"),
    (EAGLE, no_tensor("fc.weight", "blk.0.attn_norm_2.weight"), "blk.0.attn_norm_2.weight"),
    (EAGLE, tensor("blk.0.attn_q.bias", 64), "does not use blk.0.attn_q.bias"),
    (EAGLE, tensor("fc.weight", 64, 128), "fc.weight has shape (64, 128), expected (64, 192)"),
    (EAGLE, no_key("eagle3.target_layers"), "eagle3.target_layers' is missing"),
    (EAGLE, key("eagle3.target_layers", [2, 4]), "shape (64, 192), expected (64, 128)"),
    (EAGLE, key("eagle3.target_layers", [2, 4, -5]), "expected layers of the target"),
    (EAGLE, no_key("eagle3.target_hidden_size"), "eagle3.target_hidden_size' is missing"),
    (EAGLE, key("eagle3.block_count", 2), "missing: blk.1.attn_norm.weight"),
    (EAGLE, key("eagle3.fc_norm", True), "missing: fc_norm.0.weight"),
    (EAGLE, key("eagle3.norm_before_fc", True), "missing: enc.output_norm.weight"),
    (EAGLE, no_key("eagle3.attention.head_count"), "attention.head_count' is missing"),
    (EAGLE, key("eagle3.target_hidden_size", 128), "its target is 128 wide"),
    (FLASH, no_key("tokenizer.ggml.mask_token_id"), "mask_token_id is missing"),
    (FLASH, key("tokenizer.ggml.mask_token_id", 512), "expected 0 to 511"),
    (FLASH, key("dflash.block_size", 1), "block_size is 1: nothing would be drafted"),
    (FLASH, key("dflash.target_layers", NO_LAYERS), "dflash.target_layers"),
    (FLASH, key("dflash.hidden_activation", "relu"), "hidden_activation is 'relu'"),
    (FLASH, no_tensor("blk.1.ffn_up.weight"), "missing: blk.1.ffn_up.weight"),
    (FLASH, tensor("blk.2.ffn_up.weight", 96, 64), "does not use blk.2.ffn_up.weight"),
    ("dflash2", no_key("dflash.selector_rank"), "dflash.selector_rank' is missing"),
    ("dflash2", no_tensor("blk.0.attn_conv_base"), "missing: blk.0.attn_conv_base"),
    ("dspark-deepspec", no_tensor("conf_proj.weight"), "missing: conf_proj.weight"),
    ("dspark-deepspec", tensor("markov_w2.weight", 96, 32), "expected (512, 32)"),
    ("assistant", no_tensor("nextn.pre_projection.weight"), "missing: nextn.pre_projection"),
    ("assistant", no_key("gemma4-assistant.embedding_length_out"), "length_out' is missing"),
    ("assistant", tensor("blk.1.attn_q_norm.weight", 16), "expected (32,)"),
]  # fmt: skip


def first_token(tensors: dict[str, TensorData]) -> int:
    ids = np.frombuffer(b"".join(map(bytes, tensors["d2t"].pieces())), "<i8")  # type: ignore[arg-type]
    return int(ids[1])


@pytest.mark.parametrize(("name", "change", "message"), PROBLEMS)
def test_problems(
    name: str, change: Change, message: str, file_of: Callable[[str], Path], tmp_path: Path
) -> None:
    report = verdict_on(changed(file_of(name), tmp_path / "out.gguf", change))
    assert not report.is_sound
    assert any(message in text for text in report.broken), report.broken
    assert not report.drafters[0].works
    for finding in report.findings:
        check_line(Exception(finding.text))


REFUSALS: list[tuple[str, Change, str]] = [
    (FLASH, no_key("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens is missing"),
    ("dflash2", key("dflash.selector_top_k", 8), "72 numbers: llama.cpp refuses"),
    ("assistant", no_key("gemma4-assistant.context_length"), "context_length"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), REFUSALS)
def test_what_llama_cpp_refuses(
    name: str, change: Change, message: str, file_of: Callable[[str], Path], tmp_path: Path
) -> None:
    report = verdict_on(changed(file_of(name), tmp_path / "out.gguf", change))
    assert any(message in text for text in report.broken), report.broken
    assert TOP_K * (TOP_K + 1) <= 64 < 8 * 9


def test_what_drafts_badly_in_llama_cpp(file_of: Callable[[str], Path], tmp_path: Path) -> None:
    path = changed(file_of("dspark-deepspec"), tmp_path / "1.gguf", no_tensor("output.weight"))
    assert any("takes the embeddings for it" in text for text in verdict_on(path).suspicions)
    path = changed(file_of(FLASH), tmp_path / "2.gguf", key("dflash.sample_from_anchor", True))
    report = verdict_on(path)
    assert any("one token late" in text for text in report.suspicions)
    assert report.drafts_for is not None
    assert report.drafts_for.most == 8
    path = changed(file_of("dspark-specforge"), tmp_path / "3.gguf",
                   no_key("dflash.has_confidence_head"))  # fmt: skip
    assert any("--spec-draft-p-min" in text for text in verdict_on(path).suspicions)


def test_numbers(file_of: Callable[[str], Path], tmp_path: Path) -> None:
    def damage(keys: dict[str, Any], tensors: dict[str, TensorData]) -> None:
        name = "blk.0.ffn_up.weight"
        values = np.zeros((96, 64), np.float32)
        values[3, 4] = np.nan
        tensors[name] = TensorData(name, (96, 64), F32, values)

    report = verdict_on(changed(file_of(FLASH), tmp_path / "out.gguf", damage))
    assert any("damaged numbers: blk.0.ffn_up.weight" in text for text in report.broken)


def test_a_backbone_of_deepseek(file_of: Callable[[str], Path], tmp_path: Path) -> None:
    change = key("dflash.hyper_connection.count", 4)
    report = verdict_on(changed(file_of(FLASH), tmp_path / "out.gguf", change))
    assert report.is_sound
    assert (report.what, report.drafters[0].works) == (
        "a DSpark drafter of DeepSeek V4 for another model", False
    )  # fmt: skip
    assert "llama.cpp runs it" in report.drafters[0].text


# Pairs -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers, rows 64 wide, 512 tokens."""
    return build_tiny("qwen35", tmp_path_factory.mktemp("target")).path


def test_a_pair_that_fits(target: Path, tmp_path: Path) -> None:
    written = write_eagle3(tmp_path / "e.gguf", target, Kind())
    report = verdict_on(target, written.path)
    assert report.is_sound
    assert report.drafters[0].works
    assert report.drafters[0].command == f"spec generate -m {target} -md {written.path}"
    assert "the drafter goes with this model" in report.drafters[0].text


MISFITS: list[tuple[str, Change | None, str]] = [
    (EAGLE, None, "it reads layers 2, 4, 5, the model has 4"),
    ("eagle3-normed", None, "it reads rows of 80, the model has rows of 64"),
    (FLASH, None, "it reads layers 2, 4, 7, the model has 4"),
    ("assistant", None, "it drafts for a gemma4, the model is a qwen35"),
    (EAGLE, no_tensor("fc.weight"), "tensors are missing: fc.weight"),
    (EAGLE, no_key("eagle3.target_layers"), "eagle3.target_layers' is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "change", "message"), MISFITS)
def test_pairs_that_do_not_fit(
    name: str,
    change: Change | None,
    message: str,
    target: Path,
    file_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    draft = file_of(name)
    if change is not None:
        draft = changed(draft, tmp_path / "draft.gguf", change)
    report = verdict_on(target, draft)
    assert not report.is_sound
    assert any(message in text for text in report.broken), report.broken
    assert all(str(draft) in f.text for f in report.findings if f.part == "drafter")
    assert not report.drafters[0].works
    assert "does not go with this model" in report.drafters[0].text


def test_another_vocabulary(target: Path, file_of: Callable[[str], Path], tmp_path: Path) -> None:
    def shuffle(keys: dict[str, Any], tensors: dict[str, TensorData]) -> None:
        entry: Typed = keys["tokenizer.ggml.tokens"]
        tokens = list(entry.value)
        tokens[20], tokens[21] = tokens[21], tokens[20]
        keys["tokenizer.ggml.tokens"] = replace(entry, value=tokens)

    draft = changed(file_of(EAGLE), tmp_path / "draft.gguf", shuffle)
    report = verdict_on(target, draft)
    assert any("belongs to another model: its token 20 is" in text for text in report.broken)


def test_an_assistant_and_its_model(file_of: Callable[[str], Path], tmp_path: Path) -> None:
    model = build_gemma("gemma4", tmp_path).path
    report = verdict_on(model, file_of("assistant"))
    assert report.drafters[0].name == "gemma4-assistant"
    assert "goes with this model" in report.drafters[0].text
    assert report.broken == []
    widen = key("gemma4-assistant.attention.key_length", 64)
    wide = changed(file_of("assistant"), tmp_path / "wide.gguf", widen)
    report = verdict_on(model, wide)
    assert any("its attention.key_length is 64, the model's 32" in text for text in report.broken)


# Other commands ----------------------------------------------------------------------------------


def test_nothing_is_extracted_from_a_drafter(file_of: Callable[[str], Path]) -> None:
    for name in (EAGLE, FLASH, "assistant"):
        with (
            open_gguf(file_of(name)) as file,
            pytest.raises(ModelError, match=r"holds a drafter .* which -md takes as it is"),
        ):
            parts_of(file)


@pytest.mark.parametrize("name", CASES)
def test_checkpoints_are_named(name: str, tmp_path: Path) -> None:
    made = build_draft_checkpoint(name, tmp_path)
    report = examine(open_anything(str(made.folder)))
    assert (report.kind, report.converts) == ("drafter-checkpoint", True)
    assert report.architecture == CASES[name].architecture
    assert "a checkpoint of a" in report.what
    (drafter,) = report.drafters
    named = "owner/target" if name.endswith("speculators") else "TARGET"
    assert f"--target-model-dir {named} -o DRAFT.gguf" in drafter.command


def test_a_checkpoint_that_cannot_be_converted(tmp_path: Path) -> None:
    made = build_draft_checkpoint(FLASH, tmp_path)
    path = made.folder / "config.json"
    path.write_text(json.dumps(made.config | {"architectures": ["DominoDraftModel"]}))
    report = examine(open_anything(str(made.folder)))
    assert not report.converts
    assert "no tensors for Domino's recurrent head" in report.findings[0].text
