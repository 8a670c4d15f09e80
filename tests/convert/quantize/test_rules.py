"""Rules by tensor name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.quantize_families import write_family

from nextn.convert.quantize.quantize_plan import QuantizeOptions, QuantizePlan, make_plan
from nextn.convert.quantize.recipes import find_recipe
from nextn.convert.quantize.type_rules import parse_rule, read_rules
from nextn.core.errors import ConfigError
from nextn.core.gguf.reader import open_gguf

N_LAYERS = 8


@pytest.mark.parametrize(
    ("layers", "taken"),
    [
        ("", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("3:", [3]),
        ("0-2:", [0, 1, 2]),
        ("6-:", [6, 7]),
        ("last2:", [6, 7]),
        ("0,2-3,last1:", [0, 2, 3, 7]),
        ("9:", []),
    ],
)
def test_layers(layers: str, taken: list[int]) -> None:
    rule = parse_rule(f"{layers}ffn_down=q6_k")
    found = [n for n in range(N_LAYERS) if rule.fits(f"blk.{n}.ffn_down.weight", N_LAYERS)]
    assert found == taken
    assert rule.type == "Q6_K"
    assert rule.fits("ffn_down.weight", N_LAYERS) == (not layers)


def test_a_colon_in_an_expression_is_none_of_layers() -> None:
    rule = parse_rule("(?:attn_q|attn_k)=keep")
    assert rule.fits("blk.0.attn_k.weight", N_LAYERS)
    assert rule.type == "keep"


@pytest.mark.parametrize("text", ["", "=", "ffn_down", "=q8_0", "ffn_down=", "(=q8_0", "a=q9_0"])
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(ConfigError, match="--tensor-type"):
        parse_rule(text)


@given(st.text(max_size=40))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    try:
        rule = parse_rule(text)
    except ConfigError:
        return
    assert rule.text == text
    assert rule.fits("blk.3.ffn_down.weight", N_LAYERS) in (True, False)


def test_rules_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    path.write_text("# the head\nnextn=q8_0 0-1:attn=q6_k\n\nffn_up=q4_0 # the rest\n")
    assert [rule.text for rule in read_rules(path)] == [
        "nextn=q8_0", "0-1:attn=q6_k", "ffn_up=q4_0"
    ]  # fmt: skip
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not a text file"):
        read_rules(path)


def plan_with(folder: Path, family: str, *rules: str, recipe: str = "Q4_K_M") -> QuantizePlan:
    with open_gguf(write_family(folder / "model.gguf", family)) as source:
        parsed = tuple(parse_rule(rule) for rule in rules)
        return make_plan(source, QuantizeOptions(find_recipe(recipe), rules=parsed))


def test_the_first_that_fits_decides(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, "llama tied", "0:ffn=q8_0", "ffn_=keep", "ffn_up=q2_k")
    types = {item.tensor.name: item.format.name for item in plan.items}
    assert types["blk.0.ffn_up.weight"] == "Q8_0"
    assert types["blk.1.ffn_up.weight"] == "F16"
    assert plan.unused_rules == ("ffn_up=q2_k",)


def test_norms_and_routers_are_out_of_reach(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, "qwen35moe", ".=q8_0")
    kept = {item.tensor.name for item in plan.items if item.is_copy}
    assert "blk.0.ffn_gate_inp.weight" in kept
    assert "blk.0.ffn_gate_inp_shexp.weight" in kept
    assert {item.format.name for item in plan.items if not item.is_copy} == {"Q8_0"}


def test_rules_hold_beside_copying(tmp_path: Path) -> None:
    plan = plan_with(tmp_path, "llama tied", "attn_v=q8_0", recipe="COPY")
    changed = [item.tensor.name for item in plan.items if not item.is_copy]
    assert changed == [f"blk.{n}.attn_v.weight" for n in range(3)]
