"""`spec convert hf --mmproj` of families other than Qwen's: types, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from support.converting import check_line, convert, plan
from support.towers import TinyVisionModel

from nextn.core.backend import create_backend
from nextn.core.errors import ModelError
from nextn.core.gguf.reader import open_gguf
from nextn.core.vision.load_images import load_images
from nextn.core.vision.mmproj_options import MmprojOptions

Build = Callable[[str], TinyVisionModel]


def edited(found: TinyVisionModel, folder: Path, file: str, edits: dict[str, Any]) -> Path:
    """A copy of a checkpoint in which a file of JSON is changed; "a.b" is b of a."""
    copy = folder / "copy"
    shutil.copytree(found.folder, copy)
    content = json.loads((copy / file).read_text())
    for name, value in edits.items():
        *outer, last = name.split(".")
        place = content
        for word in outer:
            place = place[word]
        if value is None:
            del place[last]
        else:
            place[last] = value
    (copy / file).write_text(json.dumps(content))
    return copy


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("gemma3", {"mm_tokens_per_image": 35}, "mm_tokens_per_image is 35, which squares of 12 x 12"),
    ("gemma3", {"vision_config.hidden_act": "relu"}, "hidden_act is 'relu', expected gelu_py"),
    ("gemma3", {"vision_config.num_hidden_layers": 1}, r"layers\.1\..* has no place in an mmproj"),
    ("gemma4", {"vision_config.hidden_activation": "silu"}, "hidden_act is 'silu', expected gelu"),
    ("gemma4", {"vision_config.patch_size": 16}, "patch_embedder.input_proj.weight does not fit"),
    ("idefics3", {"vision_config.image_size": 64}, "position_embedding.weight does not fit"),
    ("idefics3", {"scale_factor": 3}, "scale_factor = 3 does not divide"),
    ("internvl", {"downsample_ratio": 0.3}, "downsample_ratio is 0.3, which is not one by a whole"),
    ("internvl", {"downsample_ratio": None}, "downsample_ratio is missing"),
    ("internvl", {"vision_config.norm_type": "rms_norm"}, "norm_type is 'rms_norm', and no such"),
    ("internvl", {"vision_config.image_size": [32, 64]}, r"image_size is \[32, 64\], not a size"),
    ("internvl", {"vision_feature_layer": -2}, "vision_feature_layer is -2, expected -1"),
    ("pixtral", {"vision_config.model_type": "clip"}, "vision_config is of a 'clip': of this kind"),
    ("pixtral", {"vision_config.hidden_act": None}, "hidden_act is 'gelu', expected silu"),
    ("mistral3", {"vision_config.num_attention_heads": 3}, "does not divide into heads|no 3 heads"),
]


@pytest.mark.parametrize(("name", "edits", "message"), CONFIGS)
def test_what_config_json_says(
    name: str, edits: dict[str, Any], message: str, vision: Build, tmp_path: Path
) -> None:
    folder = edited(vision(name), tmp_path, "config.json", edits)
    with pytest.raises(ModelError, match=message) as caught:
        plan(folder, mmproj=True)
    check_line(caught.value)


def test_what_other_files_say(vision: Build, tmp_path: Path) -> None:
    folder = edited(
        vision("smolvlm"), tmp_path, "preprocessor_config.json", {"size.longest_edge": "x"}
    )
    with pytest.raises(ModelError, match=r"size.longest_edge is 'x', not a size"):
        plan(folder, mmproj=True)
    folder = edited(vision("mistral3"), tmp_path / "m", "tokenizer.json", {"added_tokens": []})
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"have no token \[IMG_BREAK\], whose row"):
        plan(folder, mmproj=True)


TENSORS: list[tuple[str, str, str]] = [
    ("gemma4", "patch_embedder.input_proj.weight", "which no matrix of square patches has"),
    ("internvl", "embeddings.cls_token", "class_embd has shape|cls_token.* does not fit"),
    ("mistral3", "norm.weight", "multi_modal_projector.norm.weight does not fit"),
    ("gemma3", "mm_input_projection_weight", "mm_input_projection_weight does not fit"),
]


@pytest.mark.parametrize(("name", "ending", "message"), TENSORS)
def test_a_misshapen_tensor(
    name: str, ending: str, message: str, vision: Build, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(vision(name).folder, copy)
    tensors = load_file(copy / "model.safetensors")
    (changed,) = (key for key in tensors if key.endswith(ending) and "language" not in key
                  and "layers" not in key)  # fmt: skip
    tensors[changed] = tensors[changed][..., :-1].clone()
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=message) as caught:
        plan(copy, mmproj=True)
    check_line(caught.value)


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
@pytest.mark.parametrize("name", ["gemma3", "gemma4-inputs", "smolvlm", "internvl", "mistral3"])
def test_types(name: str, kind: str, vision: Build, tmp_path: Path) -> None:
    found = vision(name)
    path = convert(found.folder, tmp_path / "mmproj.gguf", mmproj=True, kind=kind)
    with open_gguf(path) as file:
        types = {name: tensor.format.name for name, tensor in file.tensors.items()}
    is_exact = name in ("gemma3", "smolvlm") or kind == "q8_0"
    assert types["v.patch_embd.weight"] == ("F32" if is_exact else "F16")
    assert types["v.blk.0.attn_q.weight"] == kind.upper()
    assert types["v.blk.0.ln1.weight"] == "F32"
    assert types.get("mm.input_projection.weight", "F16") == (
        kind.upper() if name == "gemma4-inputs" else "F16"
    )
    with open_gguf(found.text) as model:
        load_images(MmprojOptions(path), model, create_backend("cpu", 1))
