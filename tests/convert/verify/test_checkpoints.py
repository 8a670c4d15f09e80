"""Checkpoints of safetensors: heads where each family has them, and what is wrong with these."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from nextn.convert.heads.family_layouts import SHARED as SHARED_PARTS
from nextn.convert.heads.family_table import find_mtp_family
from nextn.convert.verify import FileReport, checkpoint_verdict, examine, open_anything
from nextn.convert.verify.rules import Severity

E, L, EXPERTS = 16, 2, 3
Names = dict[str, tuple[int, ...]]
GQA = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
QK = ["self_attn.q_norm", "self_attn.k_norm"]
MLA = [
    "self_attn.q_a_proj", "self_attn.q_a_layernorm", "self_attn.q_b_proj",
    "self_attn.kv_a_proj_with_mqa", "self_attn.kv_a_layernorm", "self_attn.kv_b_proj",
    "self_attn.o_proj",
]  # fmt: skip
FUSED = ["self_attn.qkv_proj", "self_attn.o_proj"]
LN = ["input_layernorm", "post_attention_layernorm"]
DENSE = ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
GDN = ["linear_attn.in_proj_qkv", "linear_attn.out_proj"]
SHARED = [f"mlp.shared_experts.{x}_proj" for x in ("gate", "up", "down")]
SHARED_QWEN = [f"mlp.shared_expert.{x}_proj" for x in ("gate", "up", "down")]
EACH = [f"mlp.experts.{e}.{x}_proj" for e in range(EXPERTS) for x in ("gate", "up", "down")]
MOE = ["mlp.gate", *EACH, *SHARED]
MOE_QWEN = ["mlp.gate", *EACH, *SHARED_QWEN, "mlp.shared_expert_gate"]
TRIO = ["eh_proj", "enorm", "hnorm"]
NEXTN = [*TRIO, "shared_head.norm"]
STEP = [*GQA, *QK, "self_attn.g_proj"]
STEP_HEAD = ("norm", "output")
OWN = ["embed_tokens", "shared_head.head"]
QWEN = ["fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"]
STEP_MOE = ["moe.gate", "moe.gate_proj", "moe.up_proj", "moe.down_proj", "share_expert.gate_proj"]

# model_type: (layers, head as (prefix, names) pairs, prefix of the whole, keys)
FAMILIES: dict[str, tuple[list[list[str]], list[tuple[str, list[str]]], dict[str, Any]]] = {
    "qwen3_5": (
        [[*LN, *GDN, *DENSE], [*LN, *GQA, *QK, *DENSE]],
        [("mtp.", QWEN), ("mtp.layers.0.", [*LN, *GQA, *QK, *DENSE])],
        {"mtp_num_hidden_layers": 1},
    ),
    "qwen3_next": (
        [[*LN, *GDN, *MOE_QWEN], [*LN, *GQA, *QK, *MOE_QWEN]],
        [("mtp.", QWEN), ("mtp.layers.0.", [*LN, *GQA, *QK, *MOE_QWEN])],
        {},
    ),
    "glm4_moe": (
        [[*LN, *GQA, *DENSE], [*LN, *GQA, *MOE]],
        [("model.layers.2.", [*LN, *GQA, *MOE, *NEXTN, *OWN])],
        {"num_nextn_predict_layers": 1},
    ),
    "deepseek_v3": (
        [[*LN, *MLA, *DENSE], [*LN, *MLA, *MOE]],
        [("model.layers.2.", [*LN, *MLA, *MOE, *NEXTN, *OWN])],
        {"num_nextn_predict_layers": 1},
    ),
    "mimo_v2_flash": (
        [[*LN, *FUSED, *DENSE], [*LN, *FUSED, "self_attn.attention_sink_bias", "mlp.gate", *EACH]],
        [
            (
                f"model.mtp.layers.{i}.",
                [*TRIO, "input_layernorm", "pre_mlp_layernorm", *FUSED, *DENSE, "final_layernorm"],
            )
            for i in range(3)
        ],
        {},
    ),
    "step3p5": (
        [[*LN, *STEP, *DENSE], [*LN, *STEP, *STEP_MOE]],
        [
            (
                f"model.layers.{L + i}.",
                [*TRIO, *LN, *STEP, *DENSE, *(f"transformer.shared_head.{x}" for x in STEP_HEAD)],
            )
            for i in range(3)
        ],
        {"num_nextn_predict_layers": 3},
    ),
    "exaone_moe": (
        [[*LN, *GQA, *QK, *DENSE], [*LN, *GQA, *QK, *MOE]],
        [("mtp.", QWEN), ("mtp.layers.0.", [*LN, *GQA, *QK, *DENSE])],
        {"num_nextn_predict_layers": 1},
    ),
}  # fmt: skip
OPTIONAL = {"embed_tokens", "shared_head.head", "transformer.shared_head.output"}


def checkpoint(
    folder: Path, kind: str, drop: Callable[[str], bool] = lambda name: False, **more: Any
) -> Path:
    layers, heads, keys = FAMILIES[kind]
    inner = [(f"model.layers.{n}.", names) for n, names in enumerate(layers)] + heads
    names = [f"{prefix}{name}.weight" for prefix, part in inner for name in part]
    names += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    tensors = {name: numbers(name) for name in names if not drop(name)}
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = {"model_type": kind, "num_hidden_layers": L, "hidden_size": E, "vocab_size": 64}
    (folder / "config.json").write_text(json.dumps(config | keys | more))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def numbers(name: str) -> Any:
    if name.endswith(("eh_proj.weight", "mtp.fc.weight")):
        return np.zeros((E, 2 * E), np.float32)
    return np.zeros((E,) if "norm" in name else (E, E), np.float32)


def verdict_on(path: Path) -> FileReport:
    """But for the shapes, which are made up here."""
    report = examine(open_anything(str(path)))
    report.ignore(["checkpoint-config"])
    return report


def texts(report: FileReport, severity: Severity = Severity.BROKEN) -> list[str]:
    return [f.text for f in report.findings if f.severity is severity]


def test_a_head_of_a_family_that_is_not_converted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_verdict, "is_convertible", lambda _: False)
    report = verdict_on(checkpoint(tmp_path / "c", "glm4_moe"))
    assert not report.converts
    (mtp,) = report.drafters
    assert mtp.command.startswith("spec convert attach MODEL.gguf")


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_whole_head(kind: str, tmp_path: Path) -> None:
    report = verdict_on(checkpoint(tmp_path / "c", kind))
    assert report.findings == []
    (mtp,) = report.drafters
    assert mtp.works
    assert report.converts
    assert mtp.command.startswith("spec convert hf ")
    assert report.layers is not None
    assert report.layers.trunk == L
    assert report.layers.heads == (3 if kind in ("mimo_v2_flash", "step3p5") else 1)
    assert report.becomes["Q8_0"] == int(report.parameters * 8.5 / 8)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_tensor_of_a_head_is_missed(kind: str, tmp_path: Path) -> None:
    _, heads, _ = FAMILIES[kind]
    for prefix, names in heads[:2]:
        for inner in names:
            name = f"{prefix}{inner}.weight"
            report = verdict_on(checkpoint(tmp_path / "c", kind, name.__eq__))
            if inner in OPTIONAL:
                assert report.is_sound, name
                continue
            (text,) = texts(report)
            if inner in EACH:
                part = inner.split(".")[-1].removesuffix("_proj")
                assert f"ffn_{part}_exps has 2 of 3 experts" in text
            else:
                plain = f"{inner}.weight".removeprefix("transformer.")
                stem = find_mtp_family(report.architecture).stem(SHARED_PARTS.get(plain, plain))
                assert stem is not None
                assert f"is incomplete: {stem.removesuffix('.weight')}" in text, name
            assert not report.drafters[0].works


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_head_that_was_dropped(kind: str, tmp_path: Path) -> None:
    prefixes = tuple(prefix for prefix, _ in FAMILIES[kind][1])
    report = verdict_on(checkpoint(tmp_path / "c", kind, lambda name: name.startswith(prefixes)))
    assert report.is_sound, "as a model it is"
    (text,) = texts(report, Severity.SUSPICIOUS)
    assert "they were dropped when this checkpoint was saved" in text
    assert not report.drafters[0].works


def test_a_head_of_another_width(tmp_path: Path) -> None:
    (text,) = texts(verdict_on(checkpoint(tmp_path / "c", "qwen3_5", hidden_size=32)))
    assert text == "mtp.fc.weight has shape (16, 32), expected (32, 64)"


def test_the_head_alone(tmp_path: Path) -> None:
    report = verdict_on(
        checkpoint(tmp_path / "c", "glm4_moe", lambda n: not n.startswith("model.layers.2"))
    )
    assert "this is no whole model" in texts(report, Severity.NOTE)[0]
    assert report.drafters[0].works


def test_layers_that_are_gone(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", "qwen3_5", lambda n: n.startswith("model.layers.1."))
    assert "layers 1 of 2 have no tensors" in texts(verdict_on(folder))


def test_an_index_that_promises_too_much(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", "qwen3_5", lambda n: n.startswith("mtp."))
    named = {"mtp.fc.weight": "model.safetensors", "lm_head.weight": "model.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": named}))
    (text,) = texts(verdict_on(folder))
    assert text.startswith("model.safetensors.index.json names 1 tensors that no file has: mtp.fc")


def test_a_language_model_inside_of_one_with_eyes(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", "qwen3_5")
    config = json.loads((folder / "config.json").read_text())
    outer = {"model_type": "qwen3_5", "text_config": config, "architectures": ["X"]}
    (folder / "config.json").write_text(json.dumps(outer))
    report = verdict_on(folder)
    assert (report.architecture, report.name, report.context) == ("qwen35", "X", None)
    assert report.drafters[0].works


@pytest.mark.parametrize("stored", ["jinja", "json", "list"])
def test_the_chat_template(stored: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", "qwen3_5")
    source = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}{% if enable_thinking %}<think>{% endif %}"
    )
    if stored == "jinja":
        (folder / "chat_template.jinja").write_text(source)
    else:
        both = [{"name": "default", "template": source}, {"name": "rag", "template": "x"}]
        value: Any = source if stored == "json" else both
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    found = verdict_on(folder).template
    assert found is not None
    assert (found.tools, found.system, found.thinking) == (True, True, "enable_thinking")
    assert found.names == (("rag",) if stored == "list" else ())


def test_hostile_configurations(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c", "qwen3_5")
    for config in (
        {},
        {"model_type": ["x"]},
        {"model_type": "x\x1b[2J" * 1000, "num_hidden_layers": "many", "hidden_size": -1},
        {"num_hidden_layers": True, "architectures": {}, "quantization_config": 5},
        {"num_hidden_layers": 10**30, "text_config": "no", "vocab_size": 1.5},
        {"model_type": "qwen3_5", "num_hidden_layers": 2**31 - 1},
    ):
        (folder / "config.json").write_text(json.dumps(config))
        report = verdict_on(folder)
        assert all("\n" not in f.text and len(f.text) < 400 for f in report.findings)
