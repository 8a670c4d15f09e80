"""GLM, DeepSeek, MiMo, Step, K-EXAONE and Gemma, from checkpoints as the hub has them.

What llama.cpp's converter makes of each is written down in `data/hub_families.json`: names, shapes
and keys. Numbers are compared with a second implementation, of `spec convert attach`; with what
llama.cpp computes; and, where LLAMA_CPP_SOURCES names its folder, with what its converter writes.
`PYTHONPATH=tests/lib:.types python tests/convert/hf/test_hub_families.py` writes the data anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.attaching import attach_to, contents, metadata
from support.converting import convert
from support.hub_checkpoints import CASES, build_hub_checkpoint
from support.llama_cpp import LlamaCpp
from support.plain_hub_cases import UNLIKE_LLAMA_CPP
from support.running import random_tokens, start
from support.state_hub_cases import OTHER_EPSILON

from nextn.convert.files.output_file import OutputFile
from nextn.convert.files.recombine import detach, extract
from nextn.convert.verify import examine, open_anything
from nextn.convert.verify.scan import scan
from nextn.core.errors import ModelError
from nextn.core.gguf.reader import GgufFile, open_gguf
from nextn.core.models import ARCHITECTURES
from nextn.core.sampling.sampler import logprobs

DATA = Path(__file__).parents[2] / "data" / "hub_families.json"
SOURCES = "LLAMA_CPP_SOURCES"
RUNNER = Path(__file__).parents[2] / "lib" / "support" / "llama_converter.py"
N, N_PROBS = 12, 48
BANNED = (*range(128, 256), 509, 510, 511)  # `test_llama_cpp` says why
# GELU is a table of half floats in llama.cpp, and logits of Gemma's toys have a deviation of 9.
TOLERANCES = {name: 1e-2 if name.startswith("gemma") else 2e-4 for name in CASES}
TOLERANCES |= OTHER_EPSILON
TOLERANCES["gpt-oss-mxfp4"] = 0.1  # it rounds what meets quantised experts to int8
# Without a low rank of queries it loads models of 26 or 27 layers alone.
LOADABLE = {"deepseek-v2": {"q_lora_rank": 32}}
# What we write otherwise than llama.cpp, and why.
LATENT_HEAD = "blk.2."  # of DeepSeek V3, which its converter drops
DIFFERENT_KEYS = {
    # It stops at the trunk's layers; what lies behind is read as full attention.
    "exaone-moe": ("attention.sliding_window_pattern",),
    # It leaves the function out where the configuration does, and its reader guesses softmax.
    "glm4-lite": ("expert_gating_func",),
    "deepseek-v3": ("block_count", "nextn_predict_layers"),
    # It has no keys for what its graph knows by heart.
    "llama4-chunks": (
        "attention.sliding_window",
        "attention.temperature_length",
        "attention.temperature_scale",
    ),
}


def described(file: GgufFile) -> dict[str, Any]:
    """Names and shapes of tensors; keys with their types and values."""
    keys = {}
    for key in file.metadata:
        if key.startswith(f"{file.metadata.architecture}."):
            entry = file.metadata.entry(key)
            kinds = [kind.name for kind in (entry.type, entry.element) if kind is not None]
            value = np.asarray(file.metadata[key])
            rounded = np.float32(value) if value.dtype.kind == "f" else value
            keys[key.partition(".")[2]] = [*kinds, rounded.tolist()]
    tensors = {name: list(tensor.shape) for name, tensor in file.tensors.items()}
    return {"tensors": dict(sorted(tensors.items())), "keys": dict(sorted(keys.items()))}


def with_fused_heads(expected: dict[str, Any], n_layers: int) -> dict[str, Any]:
    """In MTP blocks of mimo2, llama.cpp's graph needs one matrix, whatever its converter writes."""
    tensors: dict[str, list[int]] = {}
    for name, shape in expected["tensors"].items():
        block, _, stem = name.removeprefix("blk.").partition(".")
        if (
            block.isdecimal()
            and int(block) >= n_layers
            and stem.startswith(("attn_q.", "attn_k.", "attn_v."))
        ):
            fused = tensors.setdefault(f"blk.{block}.attn_qkv.weight", [0, shape[1]])
            fused[0] += shape[0]
        else:
            tensors[name] = shape
    return {"tensors": dict(sorted(tensors.items())), "keys": expected["keys"]}


@pytest.mark.parametrize("name", CASES)
def test_names_shapes_and_keys_of_llama_cpp(name: str, tmp_path: Path) -> None:
    made = build_hub_checkpoint(name, tmp_path)
    ours = described(open_gguf(convert(made.folder, tmp_path / "out.gguf")))
    expected = json.loads(DATA.read_text(encoding="utf-8"))[name]
    if name == "mimo2":
        expected = with_fused_heads(expected, 3)
    for key in DIFFERENT_KEYS.get(name, ()):
        assert ours["keys"].pop(key) != expected["keys"].pop(key, None)
    if name == "deepseek-v3":
        head = [tensor for tensor in ours["tensors"] if tensor.startswith(LATENT_HEAD)]
        assert len(head) == 24
        for tensor in head:
            del ours["tensors"][tensor]
    assert ours["tensors"] == expected["tensors"]
    assert ours["keys"] == expected["keys"]


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.head])
def test_saved_by_transformers(name: str, tmp_path: Path) -> None:
    """Its configuration has other keys, and lacks some; the files are the same but for these."""
    made = build_hub_checkpoint(name, tmp_path, as_saved=True)
    ours = described(open_gguf(convert(made.folder, tmp_path / "out.gguf")))
    expected = json.loads(DATA.read_text(encoding="utf-8"))[name]
    lacking = {key for key, value in expected["keys"].items() if ours["keys"].get(key) != value}
    allowed = {
        "rope.scaling.", "rope.freq_base", "swiglu_clamp_shexp", "leading_dense_block_count",
        "attention.layer_norm_rms_epsilon", *DIFFERENT_KEYS.get(name, ()),
    }  # fmt: skip
    assert {key for key in lacking if not key.startswith(tuple(allowed))} == set()


HEADS = sorted({case.head for case in CASES.values() if case.head})


@pytest.mark.parametrize("name", HEADS)
def test_numbers_of_a_second_implementation(name: str, tmp_path: Path) -> None:
    from support.tiny_heads import build_head

    case = [case for case, known in CASES.items() if known.head == name][-1]  # fused, of mimo2
    made = build_hub_checkpoint(case, tmp_path)
    trunk = open_gguf(build_head(name, tmp_path / "again").trunk)
    ours = open_gguf(convert(made.folder, tmp_path / "out.gguf"))
    assert len(trunk.tensors) > 20
    for tensor in trunk.tensors.values():
        assert np.array_equal(ours.tensors[tensor.name].floats(), tensor.floats()), tensor.name


def test_numbers_of_gemma(tmp_path: Path) -> None:
    made = build_hub_checkpoint("gemma4-moe", tmp_path)
    ours = open_gguf(convert(made.folder, tmp_path / "4.gguf"))
    state = {name: value.numpy() for name, value in made.hf.state_dict().items()}
    layer = "model.layers.1."
    for stem, name in {
        "layer_output_scale.weight": "layer_scalar",
        "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.per_expert_scale",
        "ffn_gate_up_exps.weight": "experts.gate_up_proj",
        "ffn_down_exps.weight": "experts.down_proj",
        "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
    }.items():
        assert np.array_equal(ours.tensors[f"blk.1.{stem}"].floats(), state[layer + name]), stem
    factors = ours.tensors["rope_freqs.weight"].floats()
    assert factors.tolist() == [1.0] * 4 + [np.float32(1e30)] * 12
    made = build_hub_checkpoint("gemma3", tmp_path)
    ours = open_gguf(convert(made.folder, tmp_path / "3.gguf"))
    norm = made.hf.state_dict()[f"{layer}self_attn.k_norm.weight"].numpy()
    assert np.array_equal(ours.tensors["blk.1.attn_k_norm.weight"].floats(), norm + 1)


def test_mxfp4_experts_stay_as_they_are(tmp_path: Path) -> None:
    """Whatever the other matrices become."""
    made = build_hub_checkpoint("gpt-oss-mxfp4", tmp_path)
    weights = {name: value.numpy() for name, value in made.hf.state_dict().items()}
    for kind, others in (("auto", "F32"), ("q8_0", "Q8_0")):
        ours = open_gguf(convert(made.folder, tmp_path / f"{kind}.gguf", kind=kind))
        assert ours.tensors["blk.2.attn_q.weight"].format.name == others
        both = weights["model.layers.2.mlp.experts.gate_up_proj"].swapaxes(1, 2)
        down = weights["model.layers.2.mlp.experts.down_proj"].swapaxes(1, 2)
        for part, want in (("gate", both[:, ::2]), ("up", both[:, 1::2]), ("down", down)):
            stored = ours.tensors[f"blk.2.ffn_{part}_exps.weight"]
            assert stored.format.name == "MXFP4"
            assert np.array_equal(stored.floats(), want)


def test_mxfp4_that_is_damaged_is_refused(tmp_path: Path) -> None:
    made = build_hub_checkpoint("gpt-oss-mxfp4", tmp_path)
    path = made.folder / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.experts.down_proj"
    save_file(tensors | {f"{name}_scales": tensors[f"{name}_scales"][:, :, :0]}, path)
    with pytest.raises(ModelError, match=r"down_proj_scales' of U8 .* does not fit"):
        convert(made.folder, tmp_path / "out.gguf")
    tensors[f"{name}_scales"][3, 5, 0] = 255
    save_file(tensors, path)
    with pytest.raises(ModelError, match="down_proj_scales' holds NaN"):
        convert(made.folder, tmp_path / "out.gguf")


def test_other_gates_than_those_of_gpt_oss_are_refused(tmp_path: Path) -> None:
    made = build_hub_checkpoint("gpt-oss", tmp_path, as_saved=True)
    path = made.folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"swiglu_limit": 6.0}))
    with pytest.raises(ModelError, match=r"swiglu_limit is 6.0; GGUF's graph has 7.0 alone"):
        convert(made.folder, tmp_path / "out.gguf")


WITH_HEAD = [name for name, case in CASES.items() if case.head and name != "mimo2"]


@pytest.mark.parametrize("name", WITH_HEAD)
def test_attach_makes_the_same_of_the_head(name: str, tmp_path: Path) -> None:
    """Converted without its head, and given it afterwards; and what extract and detach leave."""
    made = build_hub_checkpoint(name, tmp_path)
    whole = convert(made.folder, tmp_path / "whole.gguf")
    trunk = convert(made.folder, tmp_path / "trunk.gguf", mtp="without")
    attach_to(trunk, made.folder, tmp_path / "again.gguf", keep_copies=True)
    assert contents(tmp_path / "again.gguf") == contents(whole)
    counted = ("general.size_label", "general.name")
    keys = [{e[0]: e[1:] for e in metadata(tmp_path / f"{n}.gguf")} for n in ("again", "whole")]
    assert {k: v for k, v in keys[0].items() if k not in counted} == {
        k: v for k, v in keys[1].items() if k not in counted
    }
    with open_gguf(whole) as file:
        detach(file, OutputFile(tmp_path / "detached.gguf"))
        extract(file, OutputFile(tmp_path / "head.gguf"))
    assert contents(tmp_path / "detached.gguf") == contents(trunk)
    head = contents(tmp_path / "head.gguf")
    only = convert(made.folder, tmp_path / "only.gguf", mtp="only")
    assert head == contents(only)


@pytest.mark.parametrize("name", CASES)
def test_files_are_sound(name: str, tmp_path: Path) -> None:
    """No tool takes sinks, scales, biases or factors of these families for damage."""
    made = build_hub_checkpoint(name, tmp_path)
    path = convert(made.folder, tmp_path / "out.gguf", kind="q8_0" if name == "gemma4" else "f32")
    report = examine(open_anything(str(path)))
    assert report.broken == []
    assert scan(open_gguf(path)).faults == []
    assert examine(open_anything(str(made.folder))).converts


def hf_logits(made: Any, tokens: list[int]) -> Any:
    with torch.no_grad():
        return made.hf(torch.tensor(tokens)[None]).logits[0].numpy()


RUN_HERE = [name for name, case in CASES.items() if case.architecture in ARCHITECTURES]


@pytest.mark.parametrize("name", RUN_HERE)
def test_logits(name: str, tmp_path: Path) -> None:
    made = build_hub_checkpoint(name, tmp_path, as_saved=True)
    tokens = random_tokens(24)
    got = start(convert(made.folder, tmp_path / "out.gguf")).append(tokens)
    want = hf_logits(made, tokens)
    assert float(np.abs(got - want).max() / max(1.0, want.std())) <= 2e-4


@pytest.mark.peer
@pytest.mark.parametrize("name", [name for name in CASES if name not in UNLIKE_LLAMA_CPP])
def test_llama_cpp_computes_the_same(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The configuration of `transformers`, which is what the model computes with."""
    made = build_hub_checkpoint(name, tmp_path, as_saved=True, **LOADABLE.get(name, {}))
    path = convert(made.folder, tmp_path / "out.gguf")
    prompt = random_tokens(24, seed=40)
    with capfd.disabled(), LlamaCpp(path) as peer:
        written = peer.greedy(prompt, N, n_probs=N_PROBS, banned=BANNED)
    rows = hf_logits(made, [*prompt, *written.tokens[:-1]])[len(prompt) - 1 :]
    found = np.array(
        [
            [abs(row[token] - value) for token, value in theirs.items()]
            for row, theirs in zip(logprobs(rows), written.logprobs, strict=True)
        ]
    )
    assert found.shape == (N, N_PROBS)
    assert found.max() <= TOLERANCES[name]


def run_converter(folder: Path, out: Path) -> GgufFile:
    command = [sys.executable, str(RUNNER), os.environ[SOURCES], str(folder), str(out)]
    subprocess.run(command, check=True, capture_output=True)
    return open_gguf(out)


@pytest.mark.peer
@pytest.mark.skipif(SOURCES not in os.environ, reason=f"{SOURCES} does not name llama.cpp's folder")
@pytest.mark.parametrize("name", CASES)
def test_numbers_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    made = build_hub_checkpoint(name, tmp_path)
    ours = open_gguf(convert(made.folder, tmp_path / "out.gguf"))
    theirs = run_converter(made.folder, tmp_path / "theirs.gguf")
    for tensor in theirs.tensors.values():
        if name == "mimo2" and tensor.name not in ours.tensors:
            continue  # fused here
        mine = ours.tensors[tensor.name]
        assert mine.format.name == tensor.format.name
        if tensor.name.endswith("ssm_a"):  # torch and numpy round exponentials apart
            np.testing.assert_array_max_ulp(mine.floats(), tensor.floats(), 4)
            continue
        if name == "bamba" and tensor.name.endswith(("attn_q.weight", "attn_k.weight")):
            continue  # `turned_part_as_neighbours` says why
        # It cuts Gemma's rows that have no token of the toy vocabulary.
        n = tensor.shape[0] if tensor.name == "token_embd.weight" else None
        assert np.array_equal(mine.floats()[:n], tensor.floats()), tensor.name


def write_data() -> None:
    found = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            made = build_hub_checkpoint(name, Path(folder))
            found[name] = described(run_converter(made.folder, Path(folder) / "out.gguf"))
            if name.startswith("gemma"):  # rows that the toy vocabulary has no token for are cut
                found[name]["tensors"]["token_embd.weight"][0] = 512
    DATA.write_text(_compact(found), encoding="utf-8")


def _compact(found: dict[str, Any]) -> str:
    """A line for each tensor and key."""
    text = json.dumps(found, indent=1)
    return "\n".join(_joined(text.split("\n"))) + "\n"


def _joined(lines: list[str]) -> list[str]:
    out: list[str] = []
    depth = 0
    for line in lines:
        if depth:
            out[-1] += (" " if out[-1].endswith(",") else "") + line.strip()
        else:
            out.append(line)
        depth += line.count("[") - line.count("]")
    return out


if __name__ == "__main__":
    write_data()
