"""Models by their name on the hub: which file is meant, downloading it once, and failures."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.hub import Hub, hub_alone

from nextn.core import nano
from nextn.core.errors import ConfigError
from nextn.core.hub.hub_models import (
    HubModel,
    choose_drafters,
    choose_files,
    choose_mmproj,
    fetch,
    is_hub_name,
    parse_hub_name,
)

FILES = [
    "README.md", "mmproj-F16.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "m-Q4_K_M.gguf",
    "m-UD-Q2_K.gguf", "BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf",
    "x.q5_0.gguf",
]  # fmt: skip
REPO = "owner/name"


@pytest.mark.parametrize(
    ("names", "quant", "file", "chosen"),
    [
        (FILES, None, None, ["m-Q4_K_M.gguf"]),
        (FILES, "q8_0", None, ["m-Q8_0.gguf"]),
        (FILES, "Q4_K_S", None, ["m-Q4_K_S.gguf"]),
        (FILES, "Q5_0", None, ["x.q5_0.gguf"]),
        (FILES, "UD-Q2_K", None, ["m-UD-Q2_K.gguf"]),
        (FILES, "BF16", None, [name for name in FILES if "BF16/" in name]),
        (FILES, None, "x.q5_0.gguf", ["x.q5_0.gguf"]),
        (["b-Q8_0.gguf", "a-Q2_K.gguf"], None, None, ["b-Q8_0.gguf"]),
        (["b-Q6_K.gguf", "a-Q2_K.gguf"], None, None, ["a-Q2_K.gguf"]),
        (["eagle3-m-Q4_K_M.gguf", "MTP/m-Q8_0.gguf", "m-Q6_K.gguf"], None, None, ["m-Q6_K.gguf"]),
        (["eagle3-m.gguf", "m-Q6_K.gguf"], None, "eagle3-m.gguf", ["eagle3-m.gguf"]),
        (["dflash-m-Q4_0.gguf", "dflash-m-Q8_0.gguf"], None, None, ["dflash-m-Q8_0.gguf"]),
    ],
)
def test_which_file_is_meant(
    names: list[str], quant: str | None, file: str | None, chosen: list[str]
) -> None:
    assert choose_files(names, HubModel(REPO, quant, file)) == chosen


@pytest.mark.parametrize(
    ("names", "wanted", "said"),
    [
        (FILES, HubModel(REPO, "Q3_K_L"), "has no file of Q3_K_L; it has .*'Q4_K_M'"),
        (FILES, HubModel(REPO, file="y.gguf"), "has no file 'y.gguf'; it has"),
        (["model.safetensors"], HubModel(REPO), "no GGUF file; spec convert hf owner/name"),
        (["m-00001-of-00002.gguf"], HubModel(REPO), "one of 2 parts, and m-00002-of-00002.gguf is"),
    ],
)
def test_files_that_are_not_there(names: list[str], wanted: HubModel, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        choose_files(names, wanted)


@pytest.mark.parametrize(
    ("names", "model", "chosen"),
    [
        (["m-Q4_K_M.gguf", "other.gguf", "mmproj-m.gguf"], "m-Q4_K_M.gguf", []),
        (
            ["eagle3-m-Q8_0.gguf", "eagle3-m-Q4_K_M.gguf", "dflash.gguf"],
            "m-Q4_K_M.gguf",
            ["dflash.gguf", "eagle3-m-Q4_K_M.gguf"],
        ),
        (["MTP/m-BF16.gguf", "MTP/m-Q8_0.gguf"], "m-Q2_K.gguf", ["MTP/m-Q8_0.gguf"]),
        (["BF16/mtp-m.gguf", "mtp-m.gguf"], "BF16/m-BF16.gguf", ["BF16/mtp-m.gguf"]),
    ],
)
def test_which_drafters_go_with_a_model(names: list[str], model: str, chosen: list[str]) -> None:
    assert choose_drafters(names, model) == chosen


@pytest.mark.parametrize(
    ("names", "model", "chosen"),
    [
        (["m-Q8_0.gguf"], "m-Q8_0.gguf", None),
        (["mmproj-m-Q8_0.gguf", "mmproj-m-BF16.gguf"], "m-Q8_0.gguf", "mmproj-m-BF16.gguf"),
        (["mmproj-m-f32.gguf", "mmproj-m-Q8_0.gguf"], "m-Q8_0.gguf", "mmproj-m-Q8_0.gguf"),
        (["mmproj.gguf"], "m-Q8_0.gguf", "mmproj.gguf"),
        (["mmproj.gguf"], "Q8_0/m-Q8_0.gguf", None),
        (["mmproj.bin", "my-mmproj.gguf"], "m-Q8_0.gguf", None),
    ],
)
def test_which_mmproj_file_goes_with_a_model(
    names: list[str], model: str, chosen: str | None
) -> None:
    assert choose_mmproj(names, model) == chosen


def test_an_mmproj_file_is_downloaded_with_the_model(hub: Hub) -> None:
    hub.files |= {"mmproj-nano-F16.gguf": b"any", "mmproj-nano-F32.gguf": b"any"}
    lines: list[str] = []
    path = fetch(HubModel(REPO, with_mmproj=True), lines.append)
    assert lines[1:] == ["hub        owner/name: mmproj-nano-F16.gguf, with which it sees images"]
    assert (path.parent / "mmproj-nano-F16.gguf").exists()
    assert not (path.parent / "mmproj-nano-F32.gguf").exists()


def test_drafters_are_downloaded_with_the_model(hub: Hub) -> None:
    """But no head of its own for a model that has one."""
    hub.files |= {"eagle3-nano.gguf": b"any", "mtp-nano.gguf": b"any", "dflash/x.gguf": b"any"}
    lines: list[str] = []
    path = fetch(HubModel(REPO, with_drafters=True), lines.append)
    assert lines[1:] == ["hub        owner/name: eagle3-nano.gguf, which drafts for it"]
    assert sorted(each.name for each in path.parent.iterdir()) == [
        "eagle3-nano.gguf", "nano-Q8_0.gguf",
    ]  # fmt: skip


def test_names() -> None:
    assert parse_hub_name("a-b/c.d") == ("a-b/c.d", None)
    assert parse_hub_name("a/b:UD-Q4_K_XL") == ("a/b", "UD-Q4_K_XL")
    for wrong in ("a", "a/b/c", "a/b:", "/b", "a/b c", ""):
        assert not is_hub_name(wrong)
        with pytest.raises(ConfigError, match="hf-repo is like owner/name"):
            parse_hub_name(wrong)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = tmp_path / "repo"
    folder.mkdir()
    shutil.copy(nano.path(), folder / "nano-Q8_0.gguf")
    with hub_alone(folder, tmp_path, monkeypatch) as made:
        yield made


def test_a_model_is_downloaded_once(hub: Hub) -> None:
    lines: list[str] = []
    path = fetch(HubModel(REPO), lines.append)
    assert path.read_bytes() == nano.path().read_bytes()
    assert lines == ["hub        owner/name: nano-Q8_0.gguf"]
    hub.requests.clear()
    assert fetch(HubModel(REPO)) == path
    assert not [each for each, _ in hub.requests if "/store/" in each]


def test_what_was_downloaded_needs_no_network(hub: Hub) -> None:
    path = fetch(HubModel(REPO))
    hub.requests.clear()
    assert fetch(HubModel(REPO, offline=True)) == path
    assert not hub.requests


@pytest.mark.parametrize(
    ("faults", "wanted", "said"),
    [
        ({}, HubModel("owner/other"), "the hub has no owner/other, or it is private"),
        ({"gated": 403}, HubModel(REPO), "owner/name is gated: accept its terms"),
        ({"status": 500}, HubModel(REPO), "owner/name cannot be downloaded"),
        ({}, HubModel(REPO, offline=True), "the network is not used, and owner/name was not"),
    ],
)
def test_failures_are_one_line(
    hub: Hub, faults: dict[str, Any], wanted: HubModel, said: str
) -> None:
    hub.faults.update(faults)
    with pytest.raises(ConfigError, match=said) as error:
        fetch(wanted)
    assert "\n" not in str(error.value)


def test_a_hub_that_is_away(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    path = fetch(HubModel(REPO))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert fetch(HubModel(REPO)) == path
    with pytest.raises(ConfigError, match=r"the hub cannot be reached .*was not downloaded"):
        fetch(HubModel("owner/other"))
