"""Files that get a head or lose it: nothing else of them changes, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.attaching import attach_to, contents, metadata
from support.llama_cpp import LlamaCpp
from support.tiny_heads import TinyHead, build_head
from support.tiny_models import TinyModel, build_tiny

from nextn.convert.files.attach_head import default_type
from nextn.convert.files.output_file import OutputFile, write
from nextn.convert.files.recombine import detach, extract, merge, open_shards, split
from nextn.core import nano
from nextn.core.errors import ConfigError, ModelError, NextnError
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import GgufFile, open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf

Tiny = Callable[..., TinyModel]
Made = Callable[[str], TinyHead]
Edit = Callable[[dict[str, Any], list[TensorData]], None]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("files")
    return cache(lambda name: build_head(name, folder, quantise="Q8_0"))


def apart(path: Path, how: Any, out: Path) -> Path:
    with open_gguf(path) as file:
        how(file, OutputFile(out, True))
    return out


def rewritten(path: Path, out: Path, edit: Edit, alignment: int = 32) -> Path:
    with open_gguf(path) as file:
        keys: dict[str, Any] = {key: file.metadata.typed(key) for key in file.metadata}
        tensors = [TensorData.of(tensor) for tensor in file.tensors.values()]
        edit(keys, tensors)
        write_gguf(out, keys, tensors, alignment=alignment, overwrite=True)
    return out


# Bytes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["glm4moe", "mimo2", "step35", "exaone-moe"])
def test_attach_detach_and_attach_again(name: str, made: Made, tmp_path: Path) -> None:
    head = made(name)
    first, second = tmp_path / "1.gguf", tmp_path / "2.gguf"
    attach_to(head.trunk, head.checkpoint, first, "q8_0")
    back = apart(first, detach, tmp_path / "trunk.gguf")
    assert back.read_bytes() == head.trunk.read_bytes()
    attach_to(back, first, second)
    assert second.read_bytes() == first.read_bytes()
    only = apart(first, extract, tmp_path / "mtp.gguf")
    attach_to(back, only, second)
    assert second.read_bytes() == first.read_bytes()


def test_the_bundled_model_apart_and_together(tmp_path: Path) -> None:
    only = apart(nano.path(), extract, tmp_path / "mtp.gguf")
    trunk = apart(nano.path(), detach, tmp_path / "trunk.gguf")
    attach_to(trunk, only, tmp_path / "whole.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == nano.path().read_bytes()


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_all_else_is_kept_to_the_byte(made: Made, tmp_path: Path, alignment: int) -> None:
    head = made("glm4moe")
    odd = {"general.odd": b"\xff\xfe", "general.list": [b"\xc3(", "fine"], "zzz.last": 1}
    edit: Edit = lambda keys, tensors: keys.update(odd)  # noqa: E731
    trunk = rewritten(head.trunk, tmp_path / "trunk.gguf", edit, alignment)
    attach_to(trunk, head.checkpoint, tmp_path / "out.gguf")
    before, after = contents(trunk), contents(tmp_path / "out.gguf")
    assert list(after)[: len(before)] == list(before)
    assert {name: after[name] for name in before} == before
    changed = {"glm4moe.block_count", "glm4moe.nextn_predict_layers"}
    kept = [entry for entry in metadata(tmp_path / "out.gguf") if entry[0] not in changed]
    assert kept == [entry for entry in metadata(trunk) if entry[0] not in changed]
    with open_gguf(tmp_path / "out.gguf") as file:
        assert file.alignment == alignment


def test_shards_come_out_as_one_file_or_as_shards(made: Made, tmp_path: Path) -> None:
    head = made("deepseek2")
    attach_to(head.trunk, head.checkpoint, tmp_path / "whole.gguf")
    with open_gguf(head.trunk) as file:
        parts = split(file, OutputFile(tmp_path / "part.gguf", max_bytes=80_000))
    assert len(parts) > 2
    attach_to(parts[1], head.checkpoint, tmp_path / "again.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()
    with open_gguf(tmp_path / "whole.gguf") as file:
        more = split(file, OutputFile(tmp_path / "more.gguf", max_bytes=80_000))
    with open_gguf(more[0]) as file, pytest.raises(ConfigError, match="its own shards"):
        split(file, OutputFile(tmp_path / "more.gguf", True, 90_000))
    with pytest.raises(ConfigError, match="is no part of the set of"):
        open_shards([more[0], parts[0]])
    with pytest.raises(ConfigError, match="is a whole file: there is nothing to merge"):
        open_shards([tmp_path / "whole.gguf"])
    with open_shards([more[2], more[0]]) as file:
        assert merge(file, OutputFile(tmp_path / "merged.gguf")) == [tmp_path / "merged.gguf"]
    assert (tmp_path / "merged.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


@pytest.mark.peer
@pytest.mark.parametrize("is_apart", [True, False])
def test_llama_cpp_drafts_what_it_accepts(
    is_apart: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """With the trained head of the bundled model, extracted or attached again."""
    head = apart(nano.path(), extract, tmp_path / "mtp.gguf")
    trunk = apart(nano.path(), detach, tmp_path / "trunk.gguf")
    attach_to(trunk, head, tmp_path / "whole.gguf", "q5_1")
    files = (trunk, head) if is_apart else (tmp_path / "whole.gguf", None)
    with capfd.disabled(), LlamaCpp(files[0], n_mtp=2, head=files[1]) as peer:
        timings = peer.greedy(peer.tokenize("def add(a, b):"), 24).timings
    assert timings["draft_n_accepted"] > 0.5 * timings["draft_n"] > 0


# Types -------------------------------------------------------------------------------------------


def test_types_of_a_head(made: Made, tmp_path: Path) -> None:
    head = made("glm4moe")
    rules = ("ffn_.*_exps=q4_0", "eh_proj=f16")
    done = attach_to(head.trunk, head.checkpoint, tmp_path / "a.gguf", "q8_0", *rules)
    kinds = {name.split(".", 2)[2]: kind for name, (kind, *_) in contents(done.paths[0]).items()
             if name.startswith("blk.2.")}  # fmt: skip
    assert {kinds[f"ffn_{part}_exps.weight"] for part in ("gate", "up", "down")} == {"Q4_0"}
    assert kinds["nextn.eh_proj.weight"] == "F16"
    assert kinds["attn_q.weight"] == kinds["ffn_down_shexp.weight"] == "Q8_0"
    floats = ["attn_norm.weight", "attn_q.bias", "ffn_gate_inp.weight", "exp_probs_b.bias"]
    assert {kinds[name] for name in floats} == {"F32"}
    assert sum(done.types.values()) == done.n_tensors == len(kinds)


def test_a_rule_for_the_whole_head(made: Made, tmp_path: Path) -> None:
    head = made("glm4moe")
    rules = ("attn_q=f16", "nextn=q4_0", "lm_head=q8_0")
    done = attach_to(head.trunk, head.checkpoint, tmp_path / "a.gguf", "q8_0", *rules)
    found = contents(done.paths[0]).items()
    kinds = {name.split(".", 2)[2]: kind for name, (kind, *_) in found if name.startswith("blk.2.")}
    assert kinds["attn_q.weight"] == "F16"
    matrices = ("nextn.eh_proj", "attn_k", "ffn_up_exps", "ffn_down_shexp")
    assert {kinds[f"{name}.weight"] for name in matrices} == {"Q4_0"}
    assert {kinds["attn_norm.weight"], kinds["ffn_gate_inp.weight"]} == {"F32"}
    assert done.unused_rules == ["lm_head=q8_0"]


def test_rows_that_are_no_whole_blocks_become_half_floats(made: Made, tmp_path: Path) -> None:
    head = made("deepseek2")  # whose keys of 16 numbers no block has
    done = attach_to(head.trunk, head.checkpoint, tmp_path / "a.gguf", "q8_0")
    kinds = {name: kind for name, (kind, *_) in contents(done.paths[0]).items()}
    assert kinds["blk.2.attn_k_b.weight"] == "F16"
    assert kinds["blk.2.attn_v_b.weight"] == "Q8_0"
    with pytest.raises(ConfigError, match=r"attn_k_b.weight cannot be Q8_0: its rows of 16"):
        attach_to(head.trunk, head.checkpoint, tmp_path / "b.gguf", "f16", "attn_k_b=q8_0")


def test_a_head_of_another_quantisation_is_taken_or_made_anew(tiny: Tiny, tmp_path: Path) -> None:
    trunk = tiny("qwen35", quantise="Q4_0").path
    source = tiny("qwen35", mtp=True, quantise="Q8_0").path
    attach_to(trunk, source, tmp_path / "kept.gguf")
    old, new = contents(source), contents(tmp_path / "kept.gguf")
    assert {n: v for n, v in new.items() if ".4." in n} == {
        n: v for n, v in old.items() if ".4." in n
    }
    attach_to(trunk, source, tmp_path / "f32.gguf", "f32")
    with open_gguf(source) as a, open_gguf(tmp_path / "f32.gguf") as b:
        name = "blk.4.nextn.eh_proj.weight"
        assert np.array_equal(a.tensors[name].floats(), b.tensors[name].floats())
        assert b.tensors[name].format.name == "F32"


def test_the_type_that_nobody_asked_for(tiny: Tiny) -> None:
    for quantise, from_gguf, want in [("F32", False, "keep"), ("Q8_0", False, "q8_0"),
                                      ("Q8_0", True, "keep")]:  # fmt: skip
        with open_gguf(tiny("qwen35", quantise=quantise).path) as file:
            assert default_type(file, from_gguf=from_gguf) == want


# What does not belong together -------------------------------------------------------------------


def test_another_model_of_the_same_shape_is_suspected(tiny: Tiny, tmp_path: Path) -> None:
    other = build_tiny("qwen35", tmp_path, mtp=True, seed=1).path
    for quantise in ("F32", "Q4_0"):
        trunk = tiny("qwen35", quantise=quantise).path
        with pytest.raises(ModelError, match=r"seems to be another model.*output_norm.weight diff"):
            attach_to(trunk, other, tmp_path / "out.gguf")
        done = attach_to(trunk, other, tmp_path / "out.gguf", trusts=True)
        assert len(done.suspicions) >= 3


@pytest.mark.parametrize("quantise", ["F16", "BF16", "Q8_0", "Q5_0", "Q4_0", "Q4_1"])
def test_quantisation_is_no_reason_to_doubt(quantise: str, tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("qwen35", mtp=True).path
    done = attach_to(tiny("qwen35", quantise=quantise).path, source, tmp_path / "out.gguf")
    assert done.suspicions == []


def change(name: str, value: Any) -> Edit:
    return lambda keys, tensors: keys.update({name: value})


def reshape(name: str) -> Edit:
    def edit(keys: dict[str, Any], tensors: list[TensorData]) -> None:
        at = next(i for i, tensor in enumerate(tensors) if tensor.name == name)
        zeros = np.zeros((32, 32), np.float32)
        tensors[at] = TensorData(name, (32, 32), find_format("F32"), zeros)

    return edit


def lose(name: str) -> Edit:
    return lambda keys, tensors: tensors.remove(next(t for t in tensors if t.name == name))


def rename_token(keys: dict[str, Any], tensors: list[TensorData]) -> None:
    tokens = list(keys["tokenizer.ggml.tokens"].value)
    keys["tokenizer.ggml.tokens"] = [*tokens[:-4], "other", *tokens[-3:]]


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (change("general.architecture", "llama"), "has no|missing"),
        (reshape("blk.4.attn_q.weight"), r"attn_q.weight is \(32, 32\), the layers' are"),
        (lose("blk.4.nextn.hnorm.weight"), "nextn.hnorm.weight is missing"),
        (lose("blk.4.attn_k.weight"), "attn_k.weight is missing"),
        (lose("blk.4.ffn_up.weight"), "ffn_up.weight is missing"),
        (lose("blk.4.nextn.eh_proj.weight"), "has no MTP head"),
        (change("qwen35.block_count", 4), "belongs to block 4, but qwen35.block_count is 4"),
        (rename_token, r"their vocabularies differ \(512 and 512 tokens\)"),
    ],
)
def test_a_source_that_does_not_fit_is_refused(
    edit: Edit, complaint: str, tiny: Tiny, tmp_path: Path
) -> None:
    source = rewritten(tiny("qwen35", mtp=True).path, tmp_path / "source.gguf", edit)
    with pytest.raises(NextnError, match=complaint):
        attach_to(tiny("qwen35").path, source, tmp_path / "out.gguf")
    assert sorted(tmp_path.iterdir()) == [source]


def fuse(keys: dict[str, Any], tensors: list[TensorData]) -> None:
    """Gate and up in one, as newer converters have it."""
    names = [f"blk.4.ffn_{part}_exps.weight" for part in ("gate", "up")]
    both = [t for t in tensors if t.name in names]
    tensors[:] = [t for t in tensors if t.name not in names]
    data = [np.asarray(t.data).view(np.float32).reshape(t.shape) for t in both]
    whole = np.concatenate(data, 1)
    name = "blk.4.ffn_gate_up_exps.weight"
    tensors.append(TensorData(name, whole.shape, find_format("F32"), whole))


def test_a_head_may_be_fused_where_the_model_is_not(tiny: Tiny, tmp_path: Path) -> None:
    widths = [32] * 4
    per_layer = change("qwen35moe.expert_feed_forward_length", widths)
    trunk = rewritten(tiny("qwen35moe").path, tmp_path / "trunk.gguf", per_layer)
    source = rewritten(tiny("qwen35moe", mtp=True).path, tmp_path / "source.gguf", fuse)
    attach_to(trunk, source, tmp_path / "o.gguf")
    with open_gguf(tmp_path / "o.gguf") as file:
        assert "blk.4.ffn_gate_up_exps.weight" in file.tensors
        assert file.metadata.ints("expert_feed_forward_length") == (32,) * 5


def test_models_of_other_families_and_lengths(tiny: Tiny, made: Made, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds a head for qwen35moe.* is a qwen35"):
        attach_to(tiny("qwen35").path, tiny("qwen35moe", mtp=True).path, tmp_path / "o.gguf")
    with pytest.raises(ModelError, match=r"is a glm4_moe .glm4moe in GGUF., the target a qwen35"):
        attach_to(tiny("qwen35").path, made("glm4moe").checkpoint, tmp_path / "o.gguf")
    with pytest.raises(ModelError, match="heads of qwen3 are not read from checkpoints"):
        attach_to(tiny("qwen3").path, made("glm4moe").checkpoint, tmp_path / "o.gguf")
    with pytest.raises(ModelError, match="has no MTP head"):
        attach_to(tiny("qwen35").path, tiny("qwen35").path, tmp_path / "o.gguf")


def test_a_head_is_not_attached_twice(tiny: Tiny, tmp_path: Path) -> None:
    whole = tiny("qwen35", mtp=True).path
    with pytest.raises(ConfigError, match=r"has 1 MTP head\(s\) already; --replace"):
        attach_to(whole, whole, tmp_path / "o.gguf")
    attach_to(whole, whole, tmp_path / "o.gguf", replaces=True)
    assert contents(tmp_path / "o.gguf") == contents(whole)
    only = apart(whole, extract, tmp_path / "mtp.gguf")
    with pytest.raises(ModelError, match="holds only an MTP head"):
        attach_to(only, whole, tmp_path / "p.gguf")
    with pytest.raises(ModelError, match="there is nothing to take it off"):
        apart(only, detach, tmp_path / "p.gguf")


def test_a_key_without_its_tensors_is_no_head(made: Made, tmp_path: Path) -> None:
    """As some converters leave files: the count says two, the tensors were dropped."""
    head = made("step35")
    attach_to(head.trunk, head.checkpoint, tmp_path / "a.gguf")

    def drop(keys: dict[str, Any], tensors: list[TensorData]) -> None:
        tensors[:] = [t for t in tensors if not t.name.startswith(("blk.3.", "blk.4."))]

    claimed = rewritten(tmp_path / "a.gguf", tmp_path / "claimed.gguf", drop)
    attach_to(claimed, head.checkpoint, tmp_path / "b.gguf")
    assert metadata(tmp_path / "b.gguf") == metadata(tmp_path / "a.gguf")
    assert contents(tmp_path / "b.gguf") == contents(tmp_path / "a.gguf")


# Writing -----------------------------------------------------------------------------------------


def test_progress_ends_where_it_should(tiny: Tiny, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    source = tiny("qwen35", mtp=True).path
    attach_to(tiny("qwen35").path, source, tmp_path / "o.gguf",
              progress=lambda done, total: seen.append((done, total)))  # fmt: skip
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert (
        seen[-1][0]
        == seen[-1][1]
        == sum(len(data) for *_, data in contents(tmp_path / "o.gguf").values())
    )


def test_a_file_that_changes_meanwhile_makes_nothing(tiny: Tiny, tmp_path: Path) -> None:
    trunk = tmp_path / "trunk.gguf"
    trunk.write_bytes(tiny("qwen35").path.read_bytes())

    def disturb(done: int, total: int) -> None:
        with trunk.open("r+b") as file:
            file.seek(-1, 2)
            file.write(b"\1")

    source = tiny("qwen35", mtp=True).path
    with pytest.raises(NextnError, match="was written to meanwhile"):
        attach_to(trunk, source, tmp_path / "o.gguf", progress=disturb)
    assert list(tmp_path.iterdir()) == [trunk]


def test_an_interrupted_replacement_keeps_the_old_file_alone(tiny: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(tiny("qwen35", mtp=True).path.read_bytes())

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with open_gguf(path) as file, pytest.raises(KeyboardInterrupt):
        detach(file, OutputFile.in_place(file), stop)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_bytes() == tiny("qwen35", mtp=True).path.read_bytes()


@pytest.mark.parametrize("links", [True, False])
def test_in_place_leaves_the_old_file_as_a_backup(
    links: bool, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr("os.link", refuse)
    whole, path = tiny("qwen35", mtp=True).path, tmp_path / "m.gguf"
    path.write_bytes(whole.read_bytes())
    with open_gguf(path) as file:
        detach(file, OutputFile.in_place(file))
    assert (tmp_path / "m.gguf.bak").read_bytes() == whole.read_bytes()
    assert len(contents(path)) < len(contents(whole))
    with open_gguf(path) as file, pytest.raises(ConfigError, match=r"m.gguf.bak exists"):
        OutputFile.in_place(file)


def refuse(*_: object) -> None:
    raise OSError(1, "no links here")


def test_a_full_disk_is_seen_before_anything_is_written(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 1000

    monkeypatch.setattr("shutil.disk_usage", lambda path: Full)
    with (
        open_gguf(tiny("qwen35", mtp=True).path) as file,
        pytest.raises(NextnError, match=r"has 0 MB free, \d MB are needed"),
    ):
        detach(file, OutputFile(tmp_path / "o.gguf"))
    assert not list(tmp_path.iterdir())


def written(file: GgufFile, path: Path, **more: Any) -> None:
    key = "general.architecture"
    write(OutputFile(path, **more), {key: file.metadata.typed(key)}, [], [file])


def test_places_that_cannot_be_written_to(tiny: Tiny, tmp_path: Path) -> None:
    model = tmp_path / "m.gguf"
    model.write_bytes(tiny("qwen35").path.read_bytes())
    link, other = tmp_path / "link.gguf", tmp_path / "other.gguf"
    link.symlink_to(model)
    other.write_bytes(b"precious")
    cases = {
        model: "is the input itself; give",
        link: "is the input itself|is a symbolic link",
        other: "exists already; --force",
        tmp_path: "is a folder; give the name",
        tmp_path / "no" / "o.gguf": "there is no folder",
    }
    with open_gguf(model) as file:
        for path, complaint in cases.items():
            with pytest.raises(ConfigError, match=complaint):
                written(file, path)
        for path in (model, link):
            with pytest.raises(ConfigError, match=r"input itself|symbolic link"):
                written(file, path, overwrite=True)
        written(file, other, overwrite=True)
    with open_gguf(link) as file, pytest.raises(ConfigError, match="is a symbolic link to"):
        OutputFile.in_place(file)
    assert model.read_bytes() == tiny("qwen35").path.read_bytes()
