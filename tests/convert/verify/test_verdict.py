"""The verdict on files with one thing wrong in them, and on files with nothing wrong."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.head_files import LAYOUTS, Tensors, family_file
from support.random_file import write_random
from support.random_shapes import Sizes
from support.tiny_models import WITH_MTP, build_tiny

from nextn.convert.verify import FileReport, OpenedGguf, examine, open_anything
from nextn.convert.verify.rules import Severity
from nextn.convert.verify.verdict import Subject
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf
from nextn.core.models import ARCHITECTURES

Keys = dict[str, Any]
Edit = Callable[[Keys, Tensors], None]


def verdict_on(path: Path) -> FileReport:
    return examine(open_anything(str(path)))


def texts(report: FileReport, severity: Severity = Severity.BROKEN) -> list[str]:
    return [f.text for f in report.findings if f.severity is severity]


def ours(folder: Path, name: str = "qwen35", edit: Edit | None = None, mtp: bool = True) -> Path:
    return build_tiny(name, folder, mtp=mtp, edit=edit).path


# Sound files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_MTP)
def test_a_whole_head_of_a_family_that_runs_here(name: str, tmp_path: Path) -> None:
    report = verdict_on(ours(tmp_path, name))
    assert texts(report) == texts(report, Severity.SUSPICIOUS) == []
    assert report.runs_here
    mtp = report.drafters[0]
    assert (mtp.name, mtp.works) == ("mtp", True)
    assert mtp.command == f"spec generate -m {tmp_path / f'{name}-mtp-F32.gguf'}"
    assert report.layers is not None
    assert (report.layers.attention, report.layers.recurrent, report.layers.heads) == (1, 3, 1)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_whole_head_of_other_families(name: str, tmp_path: Path) -> None:
    report = verdict_on(family_file(tmp_path / "m.gguf", name))
    assert report.is_sound, texts(report)
    mtp = report.drafters[0]
    assert mtp.works == (name in ARCHITECTURES)
    if not mtp.works:
        assert f"{name} is not run here" in mtp.text
        assert "llama.cpp runs it" in mtp.text


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3moe", "mixtral", *WITH_MTP])
def test_trunks_are_sound(name: str, tiny: Callable[..., Any]) -> None:
    report = verdict_on(tiny(name).path)
    assert report.is_sound, texts(report)
    mtp, ngram, draft = report.drafters
    assert not mtp.works
    assert ("dropped" in mtp.text) == (name in WITH_MTP)
    assert (ngram.works, draft.works) == (True, True)
    assert report.memory is not None
    assert report.memory.kv_per_1k > 0
    assert (report.memory.recurrent > 0) == (name in WITH_MTP)


# A head with a hole ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*WITH_MTP, *LAYOUTS])
def test_every_tensor_of_a_head_is_missed(name: str, tmp_path: Path) -> None:
    """But for those that readers have something else for."""
    path = tmp_path / "m.gguf"
    path = ours(tmp_path, name) if name in WITH_MTP else family_file(path, name)
    opened = open_anything(str(path))
    assert isinstance(opened, OpenedGguf)
    meta = opened.file.metadata
    block = meta.int("block_count") - meta.int("nextn_predict_layers")
    optional = {"embed_tokens", "shared_head_head", "exp_probs_b", "attn_sinks"}
    if name != "nemotron_h_moe":
        optional.add("shared_head_norm")
    if name == "cohere2moe":
        optional |= {"ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp"}
    kept = [name for name in opened.file.tensors if name.startswith(f"blk.{block}.")]
    assert len(kept) > 10
    for gone in kept:
        stem = gone.split(".")[-2]

        tensors = {n: t for n, t in opened.file.tensors.items() if n != gone}
        report = examine(replace(opened, file=replace(opened.file, tensors=tensors)))
        found = [text for text in texts(report) if gone in text]
        assert bool(found) != (stem in optional), gone
        if found:
            (text,) = found
            assert text == f"the MTP head is incomplete: a tensor is missing: {gone}"
            assert not report.drafters[0].works
            fix = next(f.fix for f in report.findings if f.text == text)
            assert fix.startswith("spec convert attach ")


def change(**keys: Any) -> Edit:
    """`None` removes a key."""

    def edit(found: Keys, tensors: Tensors) -> None:
        for key, value in keys.items():
            name = f"qwen35.{key.replace('__', '.')}"
            found.pop(name, None)
            if value is not None:
                found[name] = value

    return edit


def set_tensor(name: str, change: Callable[[Any], Any]) -> Edit:
    def edit(keys: Keys, tensors: Tensors) -> None:
        tensors[name] = np.ascontiguousarray(change(tensors[name]))

    return edit


def rename(old: str, new: str) -> Edit:
    def edit(keys: Keys, tensors: Tensors) -> None:
        for name in [n for n in tensors if n.startswith(old)]:
            tensors[new + name.removeprefix(old)] = tensors.pop(name)

    return edit


def without_head(keys: Keys, tensors: Tensors) -> None:
    for name in [n for n in tensors if n.startswith("blk.4.")]:
        del tensors[name]


def with_nan(a: Any) -> Any:
    a = a.copy()
    a[3, 5] = np.nan
    return a


SECOND = "blk.4.nextn.enorm.weight"
FAULTS: list[tuple[str, Edit, Subject, str]] = [
    (
        "the head dropped, the key left",
        without_head,
        Subject.HEAD,
        r"nextn_predict_layers is 1, but the head was dropped: blk\.4 has no nextn tensors",
    ),
    (
        "no key",
        change(nextn_predict_layers=None),
        Subject.HEAD,
        r"blk\.4 is an MTP head, but nextn_predict_layers is missing",
    ),
    (
        "not counted",
        change(block_count=4),
        Subject.HEAD,
        r"block_count is 4, but there is blk\.4: MTP blocks count as well",
    ),
    (
        "more blocks than there are",
        change(block_count=6),
        Subject.HEAD,
        r"MTP tensors are in blk\.4, but block_count 6 and nextn_predict_layers 1 say blk\.5",
    ),
    (
        "more heads than blocks",
        change(nextn_predict_layers=9),
        Subject.HEAD,
        "nextn_predict_layers is 9, but block_count, which counts them, 5",
    ),
    (
        "arrays that were not extended",
        change(attention__head_count_kv=[2, 2, 2, 2]),
        Subject.HEAD,
        r"attention\.head_count_kv has 4 entries, but there are 5 blocks: it was not extended",
    ),
    (
        "a recurrent head",
        change(attention__recurrent_layers=[True, True, True, False, True]),
        Subject.HEAD,
        r"recurrent_layers says that blk\.4 is recurrent: MTP blocks are attention",
    ),
    (
        "a layer of the wrong kind",
        change(attention__recurrent_layers=[False, True, True, False, False]),
        Subject.MODEL,
        r"says that blk\.0 is attention; its tensors are recurrent",
    ),
    (
        "a head of another model",
        set_tensor("blk.4.nextn.eh_proj.weight", lambda a: a[:, :64]),
        Subject.HEAD,
        r"eh_proj.weight has shape \(64, 64\), expected \(64, 128\)",
    ),
    (
        "a matrix the wrong way round",
        set_tensor("blk.4.attn_k.weight", lambda a: a[:, :32]),
        Subject.HEAD,
        r"blk\.4\.attn_k\.weight has shape \(64, 32\), expected \(64, 64\)",
    ),
    (
        "NaN in the head",
        set_tensor("blk.4.nextn.eh_proj.weight", with_nan),
        Subject.HEAD,
        r"blk\.4\.nextn\.eh_proj\.weight has NaN or infinity at \[3, 5\]",
    ),
    (
        "norms without their one",
        set_tensor(SECOND, lambda a: a - 1),
        Subject.HEAD,
        r"not shifted by one, .*blk\.4\.nextn\.enorm\.weight",
    ),
    (
        "a layer that is gone",
        rename("blk.1.", "blk.9."),
        Subject.MODEL,
        r"blk\.1 has no tensors, although block_count is 5",
    ),
    ("no width", change(embedding_length=None), Subject.MODEL, r"embedding_length' is missing"),
    ("no heads", change(attention__head_count=0), Subject.MODEL, "head_count is 0 for block"),
    (
        "text for a number",
        change(block_count="five"),
        Subject.MODEL,
        r"block_count' is a string, expected an integer",
    ),
    (
        "no layers",
        change(block_count=None),
        Subject.MODEL,
        "block_count is missing",
    ),
]


@pytest.mark.parametrize(
    ("edit", "part", "message"), [pytest.param(*fault[1:], id=fault[0]) for fault in FAULTS]
)
def test_one_fault(edit: Edit, part: Subject, message: str, tmp_path: Path) -> None:
    report = verdict_on(ours(tmp_path, edit=edit))
    found = [f for f in report.findings if re.search(message, f.text)]
    assert len(found) == 1, [f.text for f in report.findings]
    assert (found[0].severity, found[0].part) == (Severity.BROKEN, part)
    assert not report.is_sound
    if part is Subject.HEAD:
        assert not report.drafters[0].works
    for finding in report.findings:
        assert "\n" not in finding.text
        assert len(finding.text) < 400


def test_several_faults_are_all_reported(tmp_path: Path) -> None:
    def edit(keys: Keys, tensors: Tensors) -> None:
        change(attention__head_count_kv=[2, 2, 2, 2], feed_forward_length=[128] * 4)(keys, tensors)
        del tensors["blk.4.nextn.hnorm.weight"]
        del tensors["blk.2.ssm_a"]
        tensors["blk.4.attn_norm.weight"] = tensors["blk.4.attn_norm.weight"] - 1

    said = "\n".join(texts(verdict_on(ours(tmp_path, edit=edit))))
    for part in ("head_count_kv has 4", "feed_forward_length has 4", "nextn.hnorm", "attn_norm"):
        assert part in said


def test_a_hole_in_the_trunk(tmp_path: Path) -> None:
    def edit(keys: Keys, tensors: Tensors) -> None:
        del tensors["blk.2.ssm_a"]
        del tensors["blk.0.ffn_up.weight"]
        tensors["blk.1.strange.weight"] = np.zeros((4, 4), np.float32)

    report = verdict_on(ours(tmp_path, edit=edit))
    (text,) = texts(report)
    assert text == "tensors are missing: blk.0.ffn_up.weight, blk.2.ssm_a"
    mtp = report.drafters[0]
    assert (mtp.works, mtp.command) == (True, ""), "the head is not at fault"

    def add(keys: Keys, tensors: Tensors) -> None:
        tensors["blk.1.strange.weight"] = np.zeros((4, 4), np.float32)

    (text,) = texts(verdict_on(ours(tmp_path, edit=add)))
    assert text.startswith("architecture qwen35 does not use blk.1.strange.weight")


# Numbers -----------------------------------------------------------------------------------------


def test_a_trunk_whose_norms_were_never_shifted(tmp_path: Path) -> None:
    def edit(keys: Keys, tensors: Tensors) -> None:
        for name in tensors:
            if name.endswith("norm.weight") and "ssm_norm" not in name:
                tensors[name] = tensors[name] - 1

    report = verdict_on(ours(tmp_path, edit=edit, mtp=False))
    (text,) = texts(report)
    assert "the converter forgot to add one" in text


def test_norms_shifted_twice(tmp_path: Path) -> None:
    def edit(keys: Keys, tensors: Tensors) -> None:
        for name in tensors:
            if name.startswith("blk.4.") and name.endswith("norm.weight"):
                tensors[name] = tensors[name] + 1

    (text,) = texts(verdict_on(ours(tmp_path, edit=edit)), Severity.SUSPICIOUS)
    assert "shifted once too often" in text
    assert "blk.4.attn_q_norm.weight" in text


def test_large_norms_that_only_heads_have_are_no_suspicion(tmp_path: Path) -> None:
    def edit(keys: Keys, tensors: Tensors) -> None:
        for name in ("enorm", "hnorm", "shared_head_norm"):
            tensors[f"blk.4.nextn.{name}.weight"] = tensors[f"blk.4.nextn.{name}.weight"] * 3

    assert verdict_on(ours(tmp_path, edit=edit)).findings == []


def test_norms_around_zero_without_negative_ones_are_a_suspicion(tmp_path: Path) -> None:
    edit = set_tensor("blk.4.nextn.hnorm.weight", lambda a: abs(a - 1) * 0.5)
    report = verdict_on(ours(tmp_path, edit=edit))
    assert report.is_sound
    (text,) = texts(report, Severity.SUSPICIOUS)
    assert "not shifted by one" in text


def test_norms_of_other_families_are_not_expected_at_one(tmp_path: Path) -> None:
    """DeepSeek's are small by nature: no shift is missing."""

    def edit(keys: Keys, tensors: Tensors) -> None:
        for name in tensors:
            if "norm" in name:
                tensors[name] = tensors[name] * 0.05

    report = verdict_on(family_file(tmp_path / "m.gguf", "deepseek2", edit))
    assert report.is_sound
    assert not [f for f in report.findings if "norm" in f.text]


SMALL = Sizes(
    n_layers=4, n_embd=256, n_ff=512, n_vocab=2048, n_heads=4, head_dim=64, n_delta_heads=4,
    delta_dim=64, n_nextn=1,
)  # fmt: skip


def retyped(source: Path, out: Path, kind: str) -> Path:
    """The matrices of the head in another type, all zeros."""
    form = find_format(kind)
    with open_gguf(source) as file:
        tensors = [
            TensorData(t.name, t.shape, form, bytes(form.n_bytes(t.n_elements)))
            if t.name.startswith("blk.4.") and len(t.shape) > 1
            else TensorData(t.name, t.shape, t.format, t.data.tobytes())
            for t in file.tensors.values()
        ]
        write_gguf(out, {key: file.metadata.typed(key) for key in file.metadata}, tensors)
    return out


@pytest.mark.parametrize(
    ("kind", "message"),
    [("F32", "matrices are F32 beside a quantised model"), ("Q2_K", "stored too coarsely")],
)
def test_types_of_a_head_that_make_no_sense(kind: str, message: str, tmp_path: Path) -> None:
    source = write_random(tmp_path / "m.gguf", "Q4_K_M", SMALL)
    assert texts(verdict_on(source), Severity.SUSPICIOUS) == []
    report = verdict_on(retyped(source, tmp_path / "other.gguf", kind))
    assert report.is_sound, texts(report)
    (found,) = [f for f in report.findings if f.severity is Severity.SUSPICIOUS]
    assert message in found.text
    assert found.fix.endswith("--type q8_0")


def test_copies_of_the_models_own_matrices(tmp_path: Path) -> None:
    def edit(keys: Keys, tensors: Tensors) -> None:
        tensors["blk.4.nextn.shared_head_head.weight"] = tensors["output.weight"]

    report = verdict_on(ours(tmp_path, edit=edit))
    assert report.is_sound
    (text,) = texts(report, Severity.NOTE)
    assert text.startswith("nextn.shared_head_head is a copy of output.weight")


# llama.cpp ---------------------------------------------------------------------------------------


def of_arch(arch: str, key: str, value: Any) -> Edit:
    def edit(keys: Keys, tensors: Tensors) -> None:
        keys.pop(f"{arch}.{key}", None)
        if value is not None:
            keys[f"{arch}.{key}"] = value

    return edit


ODD, NOTE = Severity.SUSPICIOUS, Severity.NOTE
MILDER = {"has no graph to run it": NOTE, "only with the keys of MLA": NOTE, "guesses softmax": ODD}
STRICTER: list[tuple[str, Edit, str]] = [
    ("qwen35", change(rope__dimension_sections=None), "rope.dimension_sections must be four"),
    ("qwen35", change(rope__dimension_sections=[1, 2]), "rope.dimension_sections must be four"),
    (
        "exaone-moe",
        of_arch("exaone-moe", "expert_gating_func", None),
        "expert_gating_func is missing",
    ),
    ("exaone-moe", lambda keys, tensors: None, "has no graph to run it"),
    ("mimo2", rename("output.weight", "blk.0.unused"), "output.weight is missing"),
    ("mimo2", rename("blk.2.attn_sinks.weight", "blk.2.attn_sinks"), "looks for blk.2.attn_sinks."),
    (
        "deepseek2",
        of_arch("deepseek2", "attention.key_length_mla", None),
        "only with the keys of MLA",
    ),
    ("deepseek2", of_arch("deepseek2", "expert_gating_func", None), "guesses softmax"),
    ("glm4moe", of_arch("glm4moe", "nextn_predict_layers", None), ""),
]


@pytest.mark.parametrize(("name", "edit", "message"), STRICTER)
def test_what_llama_cpp_wants(name: str, edit: Edit, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path = ours(tmp_path, name, edit) if name in WITH_MTP else family_file(path, name, edit)
    found = [f for f in verdict_on(path).findings if f.part is Subject.LLAMA_CPP]
    if not message:
        assert found == []
        return
    severity = MILDER.get(message, Severity.LLAMA_CPP)
    assert [f.severity for f in found if message in f.text] == [severity], found


def test_mimo_with_split_attention(tmp_path: Path) -> None:
    def edit(keys: Keys, tensors: Tensors) -> None:
        for n in (2, 3, 4):
            q, k, v = np.split(tensors.pop(f"blk.{n}.attn_qkv.weight"), [32, 48])
            named = {"q": q, "k": k, "v": v}
            tensors |= {f"blk.{n}.attn_{x}.weight": a for x, a in named.items()}

    report = verdict_on(family_file(tmp_path / "m.gguf", "mimo2", edit))
    assert report.is_sound, texts(report)
    assert "needs attn_qkv, in one piece" in texts(report, Severity.LLAMA_CPP)[0]


def test_a_key_without_a_head_is_tolerated_where_llama_cpp_does(tmp_path: Path) -> None:
    def edit(keys: Keys, tensors: Tensors) -> None:
        for name in [n for n in tensors if n.startswith("blk.2.")]:
            del tensors[name]

    report = verdict_on(family_file(tmp_path / "m.gguf", "glm4moe", edit))
    assert report.is_sound
    assert "the head was dropped" in texts(report, Severity.SUSPICIOUS)[0]


# Where a head could come from --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "repo"),
    [
        ("general.base_model.0.repo_url", "https://huggingface.co/Qwen/Q-9B", "Qwen/Q-9B"),
        ("general.source.huggingface.repository", "Qwen/Qwen3.5-9B", "Qwen/Qwen3.5-9B"),
        ("general.source.url", "https://huggingface.co/a/b.c/tree/main", "a/b.c"),
        ("general.source.url", "https://example.org/a/b", "CHECKPOINT"),
    ],
)  # fmt: skip
def test_the_command_names_the_checkpoint(key: str, value: str, repo: str, tmp_path: Path) -> None:
    def edit(keys: Keys, tensors: Tensors) -> None:
        keys[key] = value

    path = ours(tmp_path, edit=edit, mtp=False)
    mtp = verdict_on(path).drafters[0]
    assert mtp.command == f"spec convert attach {path} --from {repo} -o qwen35-F32-mtp.gguf"
