"""Pairs that LM Studio's settings and Ollama's manifests name are found without a flag."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.eagle3_files import write_eagle3
from support.network_drafts import N_CTX, SPEC, Tiny

from nextn.core.load_runtime import load_runtime
from nextn.core.speculation.options import SpecOptions

KEY = "llm.load.llama.speculativeDecoding."


def drafters_of(model: Path, spec: SpecOptions = SPEC) -> dict[str, str]:
    with load_runtime(model, "cpu", n_ctx=N_CTX, spec=spec) as runtime:
        assert {each.drafter for each in runtime.draft_files} <= {*runtime.spec_types}
        return {each.drafter: each.file.path.name for each in runtime.draft_files}


@pytest.fixture
def lm_studio(tiny: Tiny, tmp_path: Path) -> Path:
    """The folder of its models, with one."""
    models = tmp_path / "models"
    (models / "maker" / "model").mkdir(parents=True)
    shutil.copy(tiny("qwen3").path, models / "maker" / "model" / "model.gguf")
    (models / "maker" / "drafter").mkdir()
    return models


def set_fields(models: Path, **fields: Any) -> Path:
    """The model, whose settings have these fields."""
    folder = models.parent / ".internal/user-concrete-model-default-config/maker/model"
    folder.mkdir(parents=True, exist_ok=True)
    listed = [{"key": KEY + key, "value": value} for key, value in fields.items()]
    (folder / "model.gguf.json").write_text(json.dumps({"load": {"fields": listed}}))
    return models / "maker" / "model" / "model.gguf"


def test_a_drafter_that_lm_studio_names(lm_studio: Path) -> None:
    model = lm_studio / "maker" / "model" / "model.gguf"
    write_eagle3(lm_studio / "maker" / "drafter" / "e.gguf", model)
    assert drafters_of(model) == {}
    set_fields(lm_studio, draftModel="maker/drafter/e.gguf", draftMaxTokens=8)
    assert drafters_of(model) == {"eagle3": "e.gguf"}
    set_fields(lm_studio, draftDsparkSidecar={"checked": True, "value": "maker/drafter"})
    assert drafters_of(model) == {"eagle3": "e.gguf"}
    set_fields(lm_studio, draftDsparkSidecar={"checked": False, "value": "maker/drafter"})
    assert drafters_of(model) == {}


def test_a_whole_model_that_lm_studio_names(lm_studio: Path, tiny: Tiny) -> None:
    shutil.copy(tiny("llama").path, lm_studio / "maker" / "drafter" / "small.gguf")
    model = set_fields(lm_studio, draftModel="maker/drafter/small.gguf")
    assert drafters_of(model) == {"draft": "small.gguf"}
    assert drafters_of(model, replace(SPEC, types=("eagle3", "ngram-mod", "draft"))) == {
        "draft": "small.gguf"
    }


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", "null", '{"load": 3}', '{"load": {"fields": 1}}', '{"load": {"fields": [1]}}',
     '{"load": {"fields": [{"key": "KEYdraftModel", "value": 7}]}}',
     '{"load": {"fields": [{"key": "KEYdraftModel", "value": "no/such/file.gguf"}]}}'],
)  # fmt: skip
def test_settings_that_say_nothing(text: str, lm_studio: Path) -> None:
    model = set_fields(lm_studio)
    (path,) = lm_studio.parent.glob(".internal/*/*/*/model.gguf.json")
    path.write_text(text.replace("KEY", KEY))
    assert drafters_of(model) == {}


def test_the_draft_layer_of_an_ollama_model(tiny: Tiny, tmp_path: Path) -> None:
    blobs, manifests = tmp_path / "blobs", tmp_path / "manifests/registry.ollama.ai/library/tiny"
    blobs.mkdir()
    manifests.mkdir(parents=True)
    model, draft = blobs / "sha256-aa11", blobs / "sha256-bb22"
    shutil.copy(tiny("qwen3").path, model)
    write_eagle3(draft, model)
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}"}
        for kind, digest in (("model", "aa11"), ("template", "cc33"), ("draft", "bb22"))
    ]
    (manifests / "other").write_text("no JSON")
    (manifests / "latest").write_text(json.dumps({"layers": layers[:2]}))
    assert drafters_of(model) == {}
    (manifests / "fast").write_text(json.dumps({"layers": layers}))
    assert drafters_of(model) == {"eagle3": "sha256-bb22"}
