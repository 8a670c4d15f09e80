"""Whatever is given: kinds of GGUF, shards, folders, repositories, and files that are neither."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from safetensors.numpy import save_file
from support.gguf_bytes import gguf, string_pair
from support.hub import COMMIT, Hub, serve_hub
from support.thoroughness import n_examples
from support.tiny_models import build_tiny
from support.vocab import tokenizer_metadata

from nextn.convert.files.gguf_facts import GgufFacts, ranges
from nextn.convert.verify import FileReport, OpenedGguf, examine, open_anything
from nextn.core import nano
from nextn.core.errors import NextnError
from nextn.core.gguf.cursor import MoreNeededError
from nextn.core.gguf.header import parse_header
from nextn.core.gguf.metadata import Metadata
from nextn.core.gguf.printable import listing
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf

Command = Callable[[list[str]], int]


def verdict_on(path: Path | str) -> FileReport:
    return examine(open_anything(str(path)))


def small(path: Path, keys: dict[str, Any], *names: str) -> Path:
    form = find_format("F32")
    tensors = [TensorData(name, (4,), form, np.ones(4, "<f4")) for name in names]
    write_gguf(path, keys, tensors)
    return path


# Kinds -------------------------------------------------------------------------------------------

KINDS: list[tuple[dict[str, Any], tuple[str, ...], str, str]] = [
    (
        {"general.type": "adapter", "general.architecture": "llama", "adapter.type": "lora"},
        ("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"),
        "adapter",
        "a LoRA adapter for a model of architecture llama",
    ),
    (
        {"general.type": "imatrix", "imatrix.chunk_count": 5},
        ("blk.0.attn_q.weight.in_sum2",),
        "imatrix",
        "an importance matrix",
    ),
    (
        {"general.type": "mmproj", "general.architecture": "clip"},
        ("v.blk.0.attn_q.weight",),
        "mmproj",
        "a projector for images",
    ),
    ({"general.architecture": "clip"}, ("v.x",), "mmproj", "a projector"),
    (
        {"general.architecture": "qwen2", **tokenizer_metadata()},
        (),
        "vocabulary",
        "a vocabulary without weights",
    ),
    ({"general.architecture": "controlvector"}, ("direction.1",), "control-vector", "a control"),
    ({"general.name": "x"}, ("a",), "other", "no language model"),
    ({"general.architecture": "whisper"}, ("encoder.x",), "other", "no language model"),
]


@pytest.mark.parametrize(("keys", "names", "kind", "what"), KINDS)
def test_kinds(
    keys: dict[str, Any], names: tuple[str, ...], kind: str, what: str, tmp_path: Path
) -> None:
    report = verdict_on(small(tmp_path / "x.gguf", keys, *names))
    assert report.kind == kind
    assert what in report.what
    assert report.drafters == []
    assert report.is_sound


def head_only(path: Path, *, bare: bool = False) -> Path:
    with open_gguf(nano.path()) as file:
        shared = () if bare else ("token_embd.", "output_norm.", "output.")
        keys = [key for key in file.metadata if not (bare and key.startswith("tokenizer."))]
        tensors = [
            TensorData.of(t)
            for name, t in file.tensors.items()
            if name.startswith(("blk.6.", *shared))
        ]
        write_gguf(path, {key: file.metadata.typed(key) for key in keys}, tensors)
    return path


def test_an_mtp_head_alone(tmp_path: Path) -> None:
    path = head_only(tmp_path / "mtp-nano.gguf")
    report = verdict_on(path)
    assert (report.kind, report.is_sound) == ("mtp-head", True)
    (mtp,) = report.drafters
    assert (mtp.works, mtp.command) == (True, f"spec generate -m MODEL.gguf -md {path}")
    bare = verdict_on(head_only(tmp_path / "bare.gguf", bare=True))
    (found,) = bare.findings
    assert "missing: spec borrows these from the model, llama.cpp needs them" in found.text
    paired = examine(open_anything(str(nano.path())), open_anything(str(path)))
    assert paired.drafters[0].works
    assert paired.drafters[0].command == f"spec generate -m {nano.path()} -md {path}"


def test_a_head_with_a_model_that_it_does_not_belong_to(tmp_path: Path) -> None:
    other = build_tiny("qwen35", tmp_path, mtp=True).path
    head = head_only(tmp_path / "mtp.gguf")
    report = examine(open_anything(str(other)), open_anything(str(head)))
    said = [f.text for f in report.findings]
    assert any("embedding_length is 256, the model's 64" in text for text in said)
    assert any("belongs to another model: its " in text for text in said)
    assert not report.drafters[0].works


def test_draft_models(tiny: Callable[..., Any]) -> None:
    target, same = tiny("qwen35", mtp=True).path, tiny("qwen3").path
    report = examine(open_anything(str(target)), open_anything(str(same)))
    draft = report.drafters[-1]
    assert (draft.name, draft.works) == ("draft", True)
    assert "has the same vocabulary" in draft.text
    assert any("slower than none" in f.text for f in report.findings), "as large as the target"
    report = examine(open_anything(str(nano.path())), open_anything(str(same)))
    assert re.search(
        r"its vocabulary has 512 tokens, the target's 4096|BOS token", report.drafters[-1].text
    )
    assert "translated" in report.drafters[-1].text


# Shards ------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    (tmp_path / "set").mkdir()
    with open_gguf(nano.path()) as file:
        keys = {key: file.metadata.typed(key) for key in file.metadata}
        tensors = map(TensorData.of, file.tensors.values())
        return write_gguf(tmp_path / "set" / "n.gguf", keys, tensors, max_shard_bytes=2 << 20)


def test_any_part_opens_the_set(shards: list[Path]) -> None:
    whole = verdict_on(nano.path())
    for path in shards:
        report = verdict_on(path)
        assert (report.is_sound, report.files) == (True, len(shards))
        assert report.parameters == whole.parameters
    assert verdict_on(shards[0].parent).files == len(shards), "a folder with one set"


def test_missing_parts_are_named(shards: list[Path]) -> None:
    assert len(shards) >= 3
    for path in shards[1:]:
        path.unlink()
    with pytest.raises(NextnError) as caught:
        verdict_on(shards[0])
    assert all(path.name in str(caught.value) for path in shards[1:])
    assert f"{len(shards) - 1} of its {len(shards)} parts missing" in str(caught.value)


# Neither -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty, not a GGUF file"),
        (b"PK\x03\x04 and so on", "is a PyTorch pickle or a zip archive, neither a GGUF file nor"),
        (b"\x80\x04\x95", "is a Python pickle"),
        (b"ggml\x01", "the format before GGUF"),
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        (b"hello world", "neither a GGUF file nor a folder of safetensors: it begins with b'hell'"),
        (b"GGUF\x03\0\0\0", "needs 8 bytes at offset 8, but only 0 are left"),
    ],
)
def test_files_that_are_no_model(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    with pytest.raises(NextnError, match=message) as caught:
        verdict_on(path)
    assert "\n" not in str(caught.value)


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(NextnError, match="neither a GGUF file nor a checkpoint"):
        verdict_on(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(NextnError, match=r"has no \.safetensors file"):
        verdict_on(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK")
    with pytest.raises(NextnError, match="only pickled weights"):
        verdict_on(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(nano.path().read_bytes())
    with pytest.raises(NextnError, match=r"has 2 GGUF files: give one of them, .*: a.gguf, b.gg"):
        verdict_on(tmp_path)
    for text in ("nowhere.gguf", "no/where.gguf", "a/b/c/../d", "\0"):
        with pytest.raises(NextnError, match="no such file or folder"):
            open_anything(text)
    with pytest.raises(NextnError, match="is empty"):
        open_anything("")


def test_hostile_texts_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from nextn.cli.app import run

    data = gguf(
        [string_pair("general.architecture", "qwen35"), string_pair("general.name", "\x1b[2J\n")]
    )
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    run(["convert", "inspect", str(path)])
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert "\\x1b[2J\\n" in shown.out


@cache
def whole_file() -> OpenedGguf:
    opened = open_anything(str(nano.path()))
    assert isinstance(opened, OpenedGguf)
    return opened


VALUES = st.one_of(
    st.none(), st.integers(-(2**31), 2**31 - 1), st.floats(width=32), st.text(max_size=4),
    st.booleans(), st.lists(st.integers(-5, 300), min_size=1, max_size=9),
    st.lists(st.booleans(), min_size=1, max_size=9),
)  # fmt: skip


@given(data=st.data())
@settings(max_examples=n_examples(60), deadline=None)
def test_any_keys_and_any_holes_end_in_a_report(data: st.DataObject) -> None:
    """Never a traceback, whatever is in a file that can be read at all."""
    whole = whole_file()
    keys: dict[str, Any] = {k: whole.file.metadata.typed(k) for k in whole.file.metadata}
    changeable = sorted(k for k in keys if not k.startswith("tokenizer.ggml.tokens"))
    changed = data.draw(st.dictionaries(st.sampled_from(changeable), VALUES, max_size=4))
    for key, value in changed.items():
        keys.pop(key)
        if value is not None:
            keys[key] = value
    names = sorted(whole.file.tensors)
    gone = data.draw(st.sets(st.sampled_from(names), max_size=5))
    tensors = {n: t for n, t in whole.file.tensors.items() if n not in gone}
    label = whole.file.label
    file = replace(whole.file, metadata=Metadata.of(keys, label), tensors=tensors)
    report = examine(replace(whole, file=file))
    assert json.dumps(report.json())
    for finding in report.findings:
        assert "\n" not in finding.text
    for name in gone - {n for n in gone if not n.startswith("blk.") or "norm" in n}:
        if report.kind == "model" and not changed and "shared_head_norm" not in name:
            assert any(name in f.text for f in report.findings) or len(gone) > 1


# Repositories ------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield made


def test_a_gguf_in_a_repository_costs_its_header(hub: Hub) -> None:
    local = verdict_on(nano.path())
    hub.files["nano.gguf"] = nano.path().read_bytes()
    report = verdict_on("owner/name")
    assert hub.sent < 600_000, "the vocabulary is in the header"
    assert (report.label, report.bytes) == ("owner/name/nano.gguf", local.bytes)
    for name in ("parameters", "layers", "tokenizer", "template", "memory", "types"):
        assert getattr(report, name) == getattr(local, name)
    assert report.drafters[0].works
    (note,) = report.findings
    assert "only headers were read" in note.text


def test_many_files_in_a_repository(hub: Hub) -> None:
    data = nano.path().read_bytes()
    hub.files |= {"a.gguf": data, "sub/b.gguf": data, "README.md": b"hi"}
    with pytest.raises(
        NextnError,
        match=r"owner/name has 2 GGUF files: give one of them, owner/name/FILE: a.gguf, sub/b.gguf",
    ):
        verdict_on("owner/name")
    for text in ("owner/name/sub/b.gguf", f"owner/name@{COMMIT}:sub/b.gguf"):
        assert verdict_on(text).parameters > 1_000_000
    with pytest.raises(NextnError, match=r"owner/name has no file 'c\.gguf'"):
        verdict_on("owner/name/c.gguf")


def test_shards_in_a_repository(hub: Hub, shards: list[Path]) -> None:
    hub.files |= {f"deep/{path.name}": path.read_bytes() for path in shards}
    report = verdict_on("owner/name")
    assert (report.files, report.is_sound) == (len(shards), True)
    assert report.parameters == verdict_on(nano.path()).parameters
    del hub.files[f"deep/{shards[1].name}"]
    with pytest.raises(NextnError, match=f"parts are missing: deep/{shards[1].name}"):
        verdict_on("owner/name")


@given(cut=st.integers(8, 200_000))
@settings(max_examples=n_examples(40), deadline=None)
def test_the_beginning_of_a_header_asks_for_more(cut: int) -> None:
    """Or has all of it: never anything else, and never another header."""
    data = nano.path().read_bytes()
    whole = parse_header(data, "x")
    try:
        part = parse_header(data[:cut], "x", len(data))
    except MoreNeededError:
        assert cut < whole.data_start
    else:
        assert part.infos == whole.infos
        assert part.data_start == whole.data_start


# Small things ------------------------------------------------------------------------------------


def test_listing_and_ranges() -> None:
    assert ranges([3, 1, 2, 7, 9, 8]) == "1-3, 7-9"
    assert ranges([4]) == "4"
    assert listing(["a", "b", "c"], 2) == "a, b and 1 more"


def test_facts_survive_a_file_without_architecture() -> None:
    with open_gguf(nano.path()) as file:
        facts = GgufFacts(replace(file, metadata=Metadata.of({"a": 1})), True)
        assert (facts.architecture, facts.n_blocks, facts.per_block("x")) == ("", None, [])


def test_a_checkpoint_in_a_repository(hub: Hub, tmp_path: Path) -> None:
    """Two large files: their headers are all that is fetched."""
    large = np.zeros((1024, 1024), np.float32)
    for n in range(2):
        tensors = {f"model.layers.{n}.mlp.up_proj.weight": large, f"x{n}": large}
        save_file(tensors, tmp_path / f"{n}.safetensors")
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "qwen3_5", "num_hidden_layers": 2, "mtp_num_hidden_layers": 1})
    )
    (tmp_path / "tokenizer.json").write_text("{}")
    hub.add_folder(tmp_path)
    report = verdict_on("owner/name")
    assert (report.kind, report.architecture, report.parameters) == (
        "checkpoint",
        "qwen35",
        4 << 20,
    )
    assert hub.sent < 200_000
    of_plan, found = sorted(report.findings, key=lambda each: each.rule)
    assert of_plan.rule == "checkpoint-config"
    assert "no MTP tensors, although the configuration says 1" in found.text
