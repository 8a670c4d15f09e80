"""Drafters, from checkpoints as they are published.

What llama.cpp's converter makes of each is written down in `data/draft_files.json`: keys, shapes,
types, and a digest of the bytes of each tensor. Where LLAMA_CPP_SOURCES names its folder,
`PYTHONPATH=tests/lib:.types python tests/convert/hf/test_draft_layouts.py` writes it anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from support.converting import convert, plan
from support.draft_checkpoints import (
    ASSISTANT,
    CASES,
    HK,
    IDS,
    LLAMA3,
    MASK,
    N_DRAFT,
    Arrays,
    Config,
    D,
    DraftCheckpoint,
    H,
    build_draft_checkpoint,
)
from support.eagle3_files import LATENT, PLAIN_DIM, Q_RANK, ROPE_DIM, Kind, write_eagle3
from support.hub import serve_hub
from support.running import random_tokens
from support.tiny_models import build_tiny
from support.vocab import N_VOCAB

from nextn.convert.hf.drafters import open_target
from nextn.convert.verify import examine, open_anything
from nextn.core.generation import GenerateParams
from nextn.core.gguf.reader import GgufFile, open_gguf
from nextn.core.gguf.tensors import Tensor
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import SpecOptions
from nextn.core.tokenizer import load_tokenizer

DATA = Path(__file__).parents[2] / "data" / "draft_files.json"
SOURCES = "LLAMA_CPP_SOURCES"
RUNNER = Path(__file__).parents[2] / "lib" / "support" / "llama_converter.py"
IN_LLAMA_CPP = [name for name, case in CASES.items() if case.in_llama_cpp]
MASK_KEY = "tokenizer.ggml.mask_token_id"
# What we write and llama.cpp does not.
MORE_TENSORS = {
    # It leaves out the head of a whole vocabulary, and its reader then takes the embeddings for it.
    "dspark-deepspec": ["output.weight"],
}
OTHER_BYTES = {
    "eagle3-specforge": ["rope_freqs.weight"],  # it rounds on the way, `test_llama3_factors`
    "assistant": ["token_embd.weight"],  # it cuts rows that the toy vocabulary has no token for
}


def converted(made: DraftCheckpoint, out: Path, **options: Any) -> GgufFile:
    target = open_target(str(made.target))
    return open_gguf(convert(made.folder, out, target=target, **options))


def digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.data.tobytes()).hexdigest()[:16]


def described(file: GgufFile) -> dict[str, Any]:
    keys = {}
    for key in file.metadata:
        if key.startswith(f"{file.metadata.architecture}.") or key == MASK_KEY:
            entry = file.metadata.entry(key)
            kinds = [kind.name for kind in (entry.type, entry.element) if kind is not None]
            value = np.asarray(file.metadata[key])
            rounded = np.float32(value) if value.dtype.kind == "f" else value
            keys[key] = [*kinds, rounded.tolist()]
    tensors = {
        name: [tensor.format.name, list(tensor.shape), digest(tensor)]
        for name, tensor in file.tensors.items()
    }
    return {"tensors": dict(sorted(tensors.items())), "keys": dict(sorted(keys.items()))}


@pytest.mark.parametrize("name", IN_LLAMA_CPP)
def test_keys_and_bytes_of_llama_cpp(name: str, tmp_path: Path) -> None:
    made = build_draft_checkpoint(name, tmp_path)
    ours = described(converted(made, tmp_path / "out.gguf"))
    expected = json.loads(DATA.read_text(encoding="utf-8"))[name]
    for tensor in MORE_TENSORS.get(name, ()):
        assert tensor not in expected["tensors"]
        del ours["tensors"][tensor]
    for tensor in OTHER_BYTES.get(name, ()):
        mine, theirs = ours["tensors"].pop(tensor), expected["tensors"].pop(tensor)
        assert mine[0] == theirs[0]
        assert mine[2] != theirs[2]
    assert ours["keys"] == expected["keys"]
    assert ours["tensors"] == expected["tensors"]


def turned(rows: NDArray[Any]) -> NDArray[Any]:
    """Halves of each head side by side, as a loop: (0, D/2, 1, D/2 + 1, ...)."""
    order = [h * D + i + half * D // 2 for h in range(len(rows) // D) for i in range(D // 2)
             for half in (0, 1)]  # fmt: skip
    return rows[order]


def test_layers_that_sglang_names(tmp_path: Path) -> None:
    """Its key has layers whose outputs are read; llama.cpp's converter passes it over."""
    made = build_draft_checkpoint("eagle3-sglang-ids", tmp_path)
    file = converted(made, tmp_path / "out.gguf")
    assert list(file.metadata.ints("target_layers")) == [n + 1 for n in IDS]
    for stem, name in (("attn_q", "q_proj"), ("attn_k", "k_proj")):
        stored = made.arrays[f"midlayer.self_attn.{name}.weight"]
        assert np.array_equal(file.tensors[f"blk.0.{stem}.weight"].floats(), turned(stored))
    ids = made.arrays["d2t"] + np.arange(N_DRAFT)
    assert np.array_equal(file.tensors["d2t"].data.view("<i8"), ids)
    assert np.array_equal(np.flatnonzero(made.arrays["t2d"]), ids)


def test_dflash_of_speculators(tmp_path: Path) -> None:
    """Layers whose inputs are read, and a head over a part of the tokens."""
    made = build_draft_checkpoint("dflash-speculators", tmp_path)
    file = converted(made, tmp_path / "out.gguf")
    meta = file.metadata
    assert list(meta.ints("target_layers")) == [2, 4, 7]
    assert (meta.int("block_size"), meta.int(MASK_KEY)) == (8, MASK)
    assert not meta.has("sample_from_anchor")
    for name, stored in (("fc", "fc"), ("enc.output_norm", "hidden_norm"), ("output", "lm_head"),
                         ("blk.1.attn_q", "layers.1.self_attn.q_proj"),
                         ("blk.1.ffn_norm", "layers.1.post_attention_layernorm")):  # fmt: skip
        want = made.arrays[f"{stored}.weight"]
        assert np.array_equal(file.tensors[f"{name}.weight"].floats(), want), name
    assert file.tensors["d2t"].format.name == "I64"


def test_windows_of_speculators(tmp_path: Path) -> None:
    def edit(config: Config, arrays: Arrays) -> None:
        config["transformer_layer_config"] |= {
            "sliding_window": 16, "layer_types": ["sliding_attention"] * 2
        }  # fmt: skip
        config["sliding_window_non_causal"] = False

    made = build_draft_checkpoint("dflash-speculators", tmp_path, edit=edit)
    meta = converted(made, tmp_path / "out.gguf").metadata
    assert meta.int("attention.sliding_window") == 16
    assert meta.bools("attention.sliding_window_pattern") == (True, True)
    assert meta.bool("attention.causal")


def test_a_bias_makes_dspark_of_dflash(tmp_path: Path) -> None:
    """Whatever the class is called; and a cap of 0 is none."""

    def edit(config: Config, arrays: Arrays) -> None:
        config["architectures"] = ["DFlashDraftModel"]
        config["dflash_config"]["final_logit_softcapping"] = 0.0

    made = build_draft_checkpoint("dspark-specforge", tmp_path, edit=edit)
    meta = converted(made, tmp_path / "out.gguf").metadata
    assert meta.bool("sample_from_anchor")
    assert not meta.bool("has_confidence_head")
    assert not meta.has("final_logit_softcapping")


def test_llama3_factors(tmp_path: Path) -> None:
    made = build_draft_checkpoint("eagle3-specforge", tmp_path)
    found = converted(made, tmp_path / "out.gguf").tensors["rope_freqs.weight"].floats()
    assert LLAMA3["factor"] == 8
    wavelengths = 2 * np.pi * 1e4 ** (np.arange(0, D, 2) / D)
    smooth = (32 / wavelengths - 1) / (4 - 1)  # of 32 tokens, from a fourth of them on
    mixed = 1 / ((1 - smooth) / 8 + smooth)
    want = np.where(wavelengths < 32 / 4, 1, np.where(wavelengths > 32, 8, mixed))
    assert np.allclose(found, want, rtol=1e-6)
    assert len(set(found.tolist())) > 2


def test_a_confidence_that_reads_hidden_rows_alone_is_left_out(tmp_path: Path) -> None:
    def edit(config: Config, arrays: Arrays) -> None:
        config["confidence_head_with_markov"] = False
        arrays["confidence_head.proj.weight"] = arrays["confidence_head.proj.weight"][:, :64].copy()

    made = build_draft_checkpoint("dspark-deepspec", tmp_path, edit=edit)
    planned = plan(made.folder, target=open_target(str(made.target)))
    assert not planned.metadata["dflash.has_confidence_head"]
    assert not any(name.startswith("conf_proj") for name in planned.planned)
    assert any("reads hidden rows alone" in note for note in planned.notes)


def test_embeddings_that_are_the_head_are_written_twice(tmp_path: Path) -> None:
    def edit(config: Config, arrays: Arrays) -> None:
        config["tie_word_embeddings"] = True
        arrays["embed_tokens.weight"] = arrays["fc.weight"][:1].repeat(N_VOCAB, 0)[:, :64].copy()

    made = build_draft_checkpoint("dflash", tmp_path, edit=edit)
    file = converted(made, tmp_path / "out.gguf")
    table, head = file.tensors["token_embd.weight"], file.tensors["output.weight"]
    assert np.array_equal(table.data, head.data)


@pytest.mark.parametrize("name", ["assistant", "dflash-glimmer"])
def test_saved_by_transformers(name: str, tmp_path: Path) -> None:
    """Their classes are in `transformers`: names and configuration are its own."""
    import torch
    import transformers

    made = build_draft_checkpoint(name, tmp_path)
    config = json.loads(json.dumps(CASES[name].config))
    if name == "assistant":
        inner = ASSISTANT["text_config"] | {"vocab_size_per_layer_input": 0}
        del inner["model_type"]
        text = transformers.Gemma4TextConfig(**inner)
        settings = transformers.Gemma4AssistantConfig(
            text_config=text, backbone_hidden_size=64, use_ordered_embeddings=False
        )
        hf: Any = transformers.Gemma4AssistantForCausalLM(settings)
    else:
        config |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
        del config["architectures"], config["model_type"]
        settings = transformers.MuseGlimmerAssistantConfig(**config)
        hf = transformers.MuseGlimmerAssistantModel(settings)
    state = {key: torch.from_numpy(value) for key, value in made.arrays.items()}
    missing, surplus = hf.load_state_dict(state, strict=False)
    assert (set(missing) <= {"lm_head.weight"}, surplus) == (True, [])
    before = converted(made, tmp_path / "before.gguf")
    hf.save_pretrained(made.folder)
    after = converted(made, tmp_path / "after.gguf")
    assert described(after)["tensors"] == described(before)["tensors"]
    assert described(after)["keys"] == described(before)["keys"]


# Targets -----------------------------------------------------------------------------------------


def test_a_gguf_as_target(tmp_path: Path) -> None:
    """Its tokenizer is taken over key by key; layers and widths are its."""
    target = build_tiny("qwen3", tmp_path).path

    def edit(config: Config, arrays: Arrays) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [0, 1, 2]

    made = build_draft_checkpoint("eagle3-speculators", tmp_path, edit=edit)
    file = open_gguf(convert(made.folder, tmp_path / "o.gguf", target=open_target(str(target))))
    with open_gguf(target) as model:
        keys = [key for key in model.metadata if key.startswith("tokenizer.")]
        for key in keys:
            ours, theirs = file.metadata.entry(key), model.metadata.entry(key)
            assert (ours.type, ours.element) == (theirs.type, theirs.element), key
            assert np.array_equal(np.asarray(file.metadata[key]), np.asarray(model.metadata[key]))
        assert len(keys) > 5
    assert file.metadata.int("target_hidden_size") == 64
    report = examine(open_anything(str(target)), open_anything(str(file.path)))
    assert report.is_sound


def test_a_drafter_that_brings_its_tokenizer(tmp_path: Path) -> None:
    made = build_draft_checkpoint("dflash", tmp_path, own_tokenizer=True)
    file = open_gguf(convert(made.folder, tmp_path / "out.gguf"))
    assert load_tokenizer(file.metadata).n_vocab == N_VOCAB


def test_a_repository_as_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which no weights are fetched."""
    made = build_draft_checkpoint("dflash", tmp_path)
    with serve_hub() as hub:
        hub.add_folder(made.target)
        hub.files["model.safetensors"] = b"\0" * 100
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("SPEC_CACHE_DIR", str(tmp_path / "cache"))
        fetched = plan(made.folder, target=open_target("owner/name"))
    local = plan(made.folder, target=open_target(str(made.target)))
    assert fetched.metadata.keys() == local.metadata.keys()
    assert fetched.metadata["tokenizer.ggml.tokens"] == local.metadata["tokenizer.ggml.tokens"]
    assert not any("safetensors" in path for path, _ in hub.requests)


def test_a_target_of_an_unknown_family(tmp_path: Path) -> None:
    made = build_draft_checkpoint("dflash", tmp_path)
    path = made.target / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": "unheard_of"}))
    assert converted(made, tmp_path / "out.gguf").metadata.int("block_count") == 2


# A file that was made directly -------------------------------------------------------------------


def undone(rows: NDArray[Any]) -> NDArray[Any]:
    """Rows of a GGUF file as checkpoints have them: `turned`, backwards."""
    heads = rows.reshape(-1, D // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(rows.shape))


OF_EAGLE3 = {
    "fc": "fc", "enc.output_norm": "input_norm", "output_norm": "norm", "output": "lm_head",
    "token_embd": "embed_tokens",
    "attn_norm": "input_layernorm", "attn_norm_2": "hidden_norm",
    "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj",
    **{f"attn_{x}": f"self_attn.{x}_proj" for x in ("q", "k", "v", "q_a", "q_b")},
    "attn_q_a_norm": "self_attn.q_a_layernorm", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    **{f"attn_{x}_norm": f"self_attn.{x}_norm" for x in "qk"},
    **{f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
}  # fmt: skip


def as_stored(name: str) -> str:
    """The name in a checkpoint of a tensor of EAGLE3."""
    if name.startswith("fc_norm."):
        return name
    if not name.startswith("blk."):
        return f"{OF_EAGLE3[name.removesuffix('.weight')]}.weight"
    _, block, stem, end = name.split(".")
    return f"layers.{block}.{OF_EAGLE3[stem]}.{end}"


def drafts_with(target: Path, drafter: Path) -> tuple[list[int], int, int]:
    """Tokens, and how many were drafted and accepted."""
    spec = SpecOptions(types=("eagle3",), draft_n_max=4, fixed=True)
    params = GenerateParams(SamplingParams(temperature=0.0), max_tokens=16, ignore_eos=True)
    with load_runtime(target, "cpu", n_ctx=64, spec=spec, draft=drafter) as runtime:
        tokens = [event.token for event in runtime.generate(random_tokens(20), params)]
        return tokens, runtime.stats.draft_n, runtime.stats.draft_n_accepted


@pytest.mark.parametrize(
    "kind",
    [
        Kind(),
        Kind(norm_before_residual=True, own_embedding=True),
        Kind(fc_norm=True, norm_output=True, window=12),
        Kind(n_taps=2, n_layers=2, head_norms=True),
        Kind(is_latent=True, norm_before_fc=True),
    ],
)
def test_the_same_file_as_one_that_was_made_directly(kind: Kind, tmp_path: Path) -> None:
    """So that its drafts are the same as well, whose formulas `test_eagle3` holds them to."""
    target = build_tiny("qwen3", tmp_path).path
    direct = write_eagle3(tmp_path / "direct.gguf", target, kind)
    arrays: Arrays = {}
    for name, value in direct.tensors.items():
        is_turned = name.split(".")[-2] in ("attn_q", "attn_k", "attn_q_norm", "attn_k_norm")
        rows = value.astype(np.float32)
        if not name.endswith(("attn_k_b.weight", "attn_v_b.weight")):
            arrays[as_stored(name)] = undone(rows) if is_turned else rows
    assert direct.d2t is not None
    arrays["d2t"] = direct.d2t - np.arange(len(direct.d2t))
    if kind.is_latent:
        k_b, v_b = (direct.tensors[f"blk.0.attn_{x}_b.weight"] for x in "kv")
        both = np.concatenate([k_b.swapaxes(1, 2), v_b], axis=1)  # of each head
        arrays["layers.0.self_attn.kv_b_proj.weight"] = both.reshape(-1, LATENT).astype(np.float32)
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64,
        "num_hidden_layers": kind.n_layers, "num_attention_heads": H, "num_key_value_heads": HK,
        "head_dim": D, "intermediate_size": 48, "vocab_size": N_VOCAB, "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "max_position_embeddings": 256, "draft_vocab_size": len(direct.d2t),
        "eagle_aux_hidden_state_layer_ids": list(direct.layers),
        "norm_before_residual": kind.norm_before_residual,
        "eagle_config": {"return_hidden_post_norm": kind.norm_output, "fc_norm": kind.fc_norm},
        "sliding_window": kind.window or None,
        "layer_types": ["sliding_attention" if kind.window else "full_attention"] * kind.n_layers,
        "norm_before_fc": kind.norm_before_fc,
    }  # fmt: skip
    if kind.is_latent:
        config |= {
            "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "kimi_k2",
            "num_key_value_heads": H, "q_lora_rank": Q_RANK, "kv_lora_rank": LATENT,
            "qk_nope_head_dim": PLAIN_DIM, "qk_rope_head_dim": ROPE_DIM, "v_head_dim": D,
        }  # fmt: skip
        del config["head_dim"]
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(arrays, folder / "model.safetensors")
    ours = open_gguf(convert(folder, tmp_path / "ours.gguf", target=open_target(str(target))))
    theirs = open_gguf(direct.path)
    assert described(ours) == described(theirs)
    assert load_tokenizer(ours.metadata).tokens == load_tokenizer(theirs.metadata).tokens
    assert drafts_with(target, ours.path) == drafts_with(target, theirs.path)


def test_the_tests_would_notice(tmp_path: Path) -> None:
    made = build_draft_checkpoint("dflash", tmp_path)
    made.arrays["layers.0.mlp.up_proj.weight"][3, 5] *= 1.001
    save_file(made.arrays, made.folder / "model.safetensors")
    ours = described(converted(made, tmp_path / "out.gguf"))
    expected = json.loads(DATA.read_text(encoding="utf-8"))["dflash"]
    wrong = [name for name in ours["tensors"] if ours["tensors"][name] != expected["tensors"][name]]
    assert wrong == ["blk.0.ffn_up.weight"]


def write_data() -> None:
    found = {}
    for name in IN_LLAMA_CPP:
        with tempfile.TemporaryDirectory() as folder:
            made, out = build_draft_checkpoint(name, Path(folder)), Path(folder) / "out.gguf"
            places = [str(path) for path in (made.folder, out, made.target)]
            command = [sys.executable, str(RUNNER), os.environ[SOURCES], *places]
            subprocess.run(command, check=True, capture_output=True)
            found[name] = described(open_gguf(out))
    lines = [
        f" {json.dumps(name)}: {{\n"
        + ",\n".join(
            f"  {json.dumps(part)}: {{\n"
            + ",\n".join(f"   {json.dumps(key)}: {json.dumps(v)}" for key, v in listed.items())
            + "\n  }"
            for part, listed in each.items()
        )
        + "\n }"
        for name, each in found.items()
    ]
    DATA.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write_data()
