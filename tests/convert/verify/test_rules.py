"""The table of rules: every rule is used, and on the page as it is in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nextn.convert.verify.rules import RULES, FileRule, Severity, check_rule_names
from nextn.convert.verify.verdict import names_in
from nextn.core.errors import ConfigError

ROOT = Path(__file__).parents[3]


def row(name: str, rule: FileRule) -> str:
    there = {Severity.BROKEN: "no", Severity.LLAMA_CPP: "yes"}.get(rule.severity, "")
    there = "yes" if rule.stops_llama_cpp else there
    return f"| `{name}` | {rule.severity} | {there} | {rule.text} |"


def test_the_page_has_all_rules() -> None:
    page = (ROOT / "docs" / "convert.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `[a-z-]+` \| (?:broken|suspicious|note).*$", page, re.MULTILINE) == [
        row(name, rule) for name, rule in RULES.items()
    ]


def test_every_rule_is_used() -> None:
    folders = (ROOT / "convert" / "verify", ROOT / "cli" / "convert")
    files = [path for folder in folders for path in folder.glob("*.py") if path.stem != "rules"]
    source = "".join(path.read_text(encoding="utf-8") for path in files)
    assert [name for name in RULES if f'"{name}"' not in source] == []


def test_names_to_ignore() -> None:
    check_rule_names(["numbers", "head-shape"])
    with pytest.raises(ConfigError, match="no such rule; did you mean head-shape"):
        check_rule_names(["numbers", "head_shape"])
    with pytest.raises(ConfigError, match=r"no such rule; docs/convert\.md has the list"):
        check_rule_names(["?"])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a tensor is missing: blk.4.nextn.hnorm.weight", ["blk.4.nextn.hnorm.weight"]),
        ("block_count is 4, but there is blk.4: unused", ["block_count", "blk.4"]),
        ("exaone-moe.rope.freq_base is 0", ["exaone-moe.rope.freq_base"]),
        ("a_dir/m_1.gguf: llama.cpp reads d.gguf, config.json", []),
        ("'qwen35.block_count' is a string", ["qwen35.block_count"]),
        ("norms: blk.0.attn_norm.weight (median 0.10), 3.5 more", ["blk.0.attn_norm.weight"]),
    ],
)
def test_names_that_a_text_has(text: str, names: list[str]) -> None:
    assert list(names_in(text)) == names
