"""The types of every tensor are those that llama-quantize gives, for many families."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.quantize_families import FAMILIES, TYPES, cases, digest, write_family, write_importance

from nextn.convert.quantize.imatrix import read_importance
from nextn.convert.quantize.quantize_plan import QuantizeOptions, check_plan, make_plan
from nextn.convert.quantize.recipes import find_recipe
from nextn.convert.quantize.type_rules import parse_rule
from nextn.core.errors import ConfigError
from nextn.core.gguf.reader import open_gguf

ANSWERS: dict[str, dict[str, str]] = json.loads(TYPES.read_text(encoding="utf-8"))


def options_of(recipe: str, flags: str, folder: Path, family: str) -> QuantizeOptions:
    importance = None
    if flags == "imatrix":
        path = write_importance(folder / "imatrix.gguf", FAMILIES[family][1])
        importance = read_importance(path)
    rules = ("ffn_down=q8_0", "attn_v=q5_k") if flags == "rules" else ()
    return QuantizeOptions(
        find_recipe(recipe),
        rules=tuple(parse_rule(rule) for rule in rules),
        output_type="Q5_K" if flags == "output" else None,
        embedding_type="Q3_K" if flags == "embedding" else None,
        leaves_output=flags == "leave",
        is_pure=flags == "pure",
        importance=importance,
        keeps_heads=False,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_types_are_those_of_llama_quantize(family: str, tmp_path: Path) -> None:
    path = write_family(tmp_path / "model.gguf", family)
    different = []
    with open_gguf(path) as source:
        for recipe, flags in cases(family):
            plan = make_plan(source, options_of(recipe, flags, tmp_path, family))
            types = {item.tensor.name: item.format.name for item in plan.items}
            case = f"{recipe} {flags}".strip()
            if digest(types) != ANSWERS[family][case]:
                different.append(case)
    assert not different


def test_answers_differ_from_case_to_case() -> None:
    """A digest of nothing, or of one answer for all, would let everything pass."""
    assert all(len(set(answers.values())) > 12 for answers in ANSWERS.values())
    different = {tuple(sorted(shapes)) for _, shapes in FAMILIES.values()}
    assert len({answers["Q4_K_M"] for answers in ANSWERS.values()}) >= len(different) > 40


def test_the_smallest_recipe_needs_importance(tmp_path: Path) -> None:
    path = write_family(tmp_path / "model.gguf", "llama tied")
    with open_gguf(path) as source:
        with pytest.raises(ConfigError, match="--imatrix"):
            check_plan(make_plan(source, options_of("Q2_K_S", "", tmp_path, "llama tied")))
        check_plan(make_plan(source, options_of("Q2_K_S", "imatrix", tmp_path, "llama tied")))


def test_names_of_recipes() -> None:
    found = find_recipe("q4_k")
    assert found is not None
    assert found.name == "Q4_K_M"
    assert find_recipe("copy") is None
    for name in ("NVFP4", "Q9_0", ""):
        with pytest.raises(ConfigError, match="--type"):
            find_recipe(name)
