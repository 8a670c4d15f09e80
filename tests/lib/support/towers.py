"""Tiny random models that see images: of `transformers`, as an mmproj file of the same weights, and
their text model as a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from nextn.core.backend.layers import Floats

from .checkpoints import write_tokenizer
from .converting import convert
from .tiny_models import COMMON, HYBRID

Config = dict[str, Any]
Tensors = dict[str, NDArray[np.float32]]
BEGIN, END, PLACE = 500, 501, 502  # the tokens of images, in the vocabulary of the tests
MARKS = {BEGIN: "<|vision_start|>", END: "<|vision_end|>", PLACE: "<|image_pad|>"}
CLIP_MEAN = [0.48145466, 0.4578275, 0.40821073]
CLIP_STD = [0.26862954, 0.26130258, 0.27577711]
HALF = [0.5, 0.5, 0.5]
ROPE: Config = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
TEXT: Config = COMMON | {"num_hidden_layers": 3, "rope_parameters": ROPE}
IDS: Config = {
    "image_token_id": PLACE, "vision_start_token_id": BEGIN, "vision_end_token_id": END,
    "video_token_id": 503, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class TowerCase:
    """What a family's tower is, in the words of `transformers` and of mmproj files."""

    name: str  # of the classes of `transformers`
    vision: Config
    text: Config
    projector: str
    mean: list[float]
    std: list[float]
    keys: Config
    map: Callable[[str, int], list[str]]  # names in the file of a tensor, and of how many layers


def _qwen2(name: str, n: int) -> list[str]:
    return _renamed(name, {"merger.ln_q": "v.post_ln", "merger.mlp.0": "mm.0",
                           "merger.mlp.2": "mm.2"}, is_split=True)  # fmt: skip


def _qwen3(name: str, n: int) -> list[str]:
    table = {
        "merger.norm": "v.post_ln", "merger.linear_fc1": "mm.0", "merger.linear_fc2": "mm.2",
        "pos_embed": "v.position_embd",
    }  # fmt: skip
    for k, layer in enumerate(DEEP[:n]):
        for old, new in (("norm", "norm"), ("linear_fc1", "fc1"), ("linear_fc2", "fc2")):
            table[f"deepstack_merger_list.{k}.{old}"] = f"v.deepstack.{layer}.{new}"
    return _renamed(name, table, is_split=False)


DEEP = [0, 2]
PARTS = {
    "norm1": "ln1", "norm2": "ln2", "attn.qkv": "attn_qkv", "attn.proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.linear_fc1": "ffn_up",
    "mlp.linear_fc2": "ffn_down",
}  # fmt: skip


def _renamed(name: str, table: dict[str, str], *, is_split: bool) -> list[str]:
    stem, _, kind = name.rpartition(".")
    if stem == "patch_embed.proj":
        return [f"v.patch_embd.{kind}"] + [f"v.patch_embd.{kind}.1"] * (kind == "weight")
    if stem in table:
        return [f"{table[stem]}.{kind}"]
    _, block, rest = stem.split(".", 2)
    part = PARTS[rest]
    if part == "attn_qkv" and is_split:
        return [f"v.blk.{block}.attn_{one}.{kind}" for one in "qkv"]
    return [f"v.blk.{block}.{part}.{kind}"]


def _vision3(deep: list[int]) -> Config:
    return {
        "depth": 4, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "patch_size": 16,
        "num_position_embeddings": 36, "out_hidden_size": 64, "deepstack_visual_indexes": deep,
    }  # fmt: skip


TOWERS = {
    "qwen2vl": TowerCase(
        "Qwen2VL",
        {"embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2, "hidden_size": 64},
        TEXT, "qwen2vl_merger", CLIP_MEAN, CLIP_STD, {}, _qwen2,
    ),
    "qwen2.5vl": TowerCase(
        "Qwen2_5_VL",
        {"depth": 4, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48,
         "fullatt_block_indexes": [1, 3], "out_hidden_size": 64},
        TEXT, "qwen2.5vl_merger", CLIP_MEAN, CLIP_STD,
        {"clip.use_silu": True, "clip.vision.n_wa_pattern": 2}, _qwen2,
    ),
    "qwen3vl": TowerCase(
        "Qwen3VL", _vision3(DEEP),
        TEXT | {"head_dim": 16, "rope_parameters": ROPE | {"mrope_interleaved": True}},
        "qwen3vl_merger", HALF, HALF, {"clip.use_gelu": True}, _qwen3,
    ),
    "qwen35": TowerCase(
        "Qwen3_5", _vision3([]),
        COMMON | HYBRID, "qwen3vl_merger", HALF, HALF, {"clip.use_gelu": True}, _qwen3,
    ),
    "qwen3vl-flat": TowerCase(
        "Qwen3VL", _vision3([]),
        TEXT | {"head_dim": 16, "rope_parameters": ROPE | {"mrope_interleaved": True}},
        "qwen3vl_merger", HALF, HALF, {"clip.use_gelu": True}, _qwen3,
    ),
}  # fmt: skip


@dataclass
class TinyVisionModel:
    case: TowerCase
    hf: Any
    folder: Path  # the checkpoint
    mmproj: Path
    text: Path  # the GGUF file of the text model

    def features(self, patches: Floats, grid: tuple[int, int]) -> Floats:
        """What `transformers` makes of the patches of an image: rows, and those for layers."""
        pixels = np.repeat(patches.reshape(len(patches), 3, 1, -1), 2, axis=2)
        thw = torch.tensor([[1, *grid]])
        with torch.no_grad():
            found = self.hf.model.visual(
                torch.from_numpy(pixels.reshape(len(patches), -1)), grid_thw=thw, return_dict=True
            )
        deep = getattr(found, "deepstack_features", None) or []
        return np.concatenate([found.pooler_output.numpy(), *(d.numpy() for d in deep)], axis=1)


def build_vision_model(name: str, folder: Path, *, kind: str = "F32") -> TinyVisionModel:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    case = TOWERS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{case.name}Config")(
        vision_config=case.vision, text_config=case.text, **IDS
    )
    config._attn_implementation = "eager"
    hf = getattr(transformers, f"{case.name}ForConditionalGeneration")(config).eval().float()
    randomise_tower(hf)
    own = folder / name
    hf.save_pretrained(own)
    write_tokenizer(own)
    add_marks(own)
    colours = {"image_mean": case.mean, "image_std": case.std}
    (own / "preprocessor_config.json").write_text(json.dumps(colours))
    text = convert(own, folder / f"{name}.gguf")
    mmproj = folder / f"mmproj-{name}-{kind}.gguf"
    write_mmproj(mmproj, case, hf, kind)
    return TinyVisionModel(case, hf, own, mmproj, text)


def randomise_tower(hf: torch.nn.Module) -> None:
    """Tables of positions, norms and biases as well: what is usual at first hides errors."""
    with torch.no_grad():
        for name, value in hf.named_parameters():
            if value.ndim == 1:
                is_norm = "norm" in name or "ln_q" in name
                value.normal_(1.0 if is_norm and name.endswith("weight") else 0.0, 0.2)
            elif "embed_tokens" in name or "pos_embed" in name:
                value.normal_(0.0, 1.0)
            else:
                value.normal_(0.0, value[0].numel() ** -0.5)


def add_marks(folder: Path) -> None:
    path = folder / "tokenizer.json"
    definition = json.loads(path.read_text())
    definition["added_tokens"] += [
        {"id": i, "content": text, "special": True, "normalized": False, "single_word": False,
         "lstrip": False, "rstrip": False}
        for i, text in MARKS.items()
    ]  # fmt: skip
    path.write_text(json.dumps(definition))


def tower_tensors(case: TowerCase, hf: Any) -> Tensors:
    """Under the names of mmproj files."""
    state = hf.model.visual.state_dict()
    n_deep = len(case.vision.get("deepstack_visual_indexes", []))
    out: Tensors = {}
    for name, value in state.items():
        names = case.map(name, n_deep)
        array = value.detach().float().numpy()
        if names[0] == "v.patch_embd.weight":
            parts = [array[:, :, 0], array[:, :, 1]]
        else:
            parts = np.split(array, len(names))
        out |= {each: np.ascontiguousarray(part) for each, part in zip(names, parts, strict=True)}
    return out


def tower_keys(case: TowerCase, hf: Any) -> Config:
    vision = hf.config.vision_config
    n_embd = getattr(vision, "embed_dim", None) or vision.hidden_size
    is_qwen3 = case.projector == "qwen3vl_merger"
    n_ff = getattr(vision, "intermediate_size", None) or int(n_embd * vision.mlp_ratio)
    keys = {
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": case.projector,
        "clip.vision.embedding_length": n_embd,
        "clip.vision.feed_forward_length": n_ff,
        "clip.vision.block_count": vision.depth,
        "clip.vision.attention.head_count": vision.num_heads,
        "clip.vision.attention.layer_norm_epsilon": 1e-6,
        "clip.vision.projection_dim": 64,
        "clip.vision.image_size": 6 * 16 if is_qwen3 else 560,
        "clip.vision.patch_size": vision.patch_size,
        "clip.vision.spatial_merge_size": 2,
        "clip.vision.image_mean": case.mean,
        "clip.vision.image_std": case.std,
    }
    return keys | case.keys


def write_mmproj(path: Path, case: TowerCase, hf: Any, kind: str = "F32", **edits: Any) -> None:
    """`edits`: keys by their last word, or None to leave one out; `tensors`: a function that may
    change these."""
    tensors, keys = tower_tensors(case, hf), tower_keys(case, hf)
    change = edits.pop("tensors", None)
    if change is not None:
        change(tensors)
    for word, value in edits.items():
        keys[next(key for key in keys if key.endswith(f".{word}"))] = value
    writer = gguf.GGUFWriter(path, "clip")
    for key, value in keys.items():
        add_key(writer, key, value)
    wanted = gguf.GGMLQuantizationType[kind]
    for name, array in tensors.items():
        is_matrix = array.ndim == 2 and "position" not in name
        is_whole = array.shape[-1] % gguf.GGML_QUANT_SIZES[wanted][0] == 0
        stored = wanted if is_matrix and is_whole else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_key(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32,
           str: writer.add_string, list: writer.add_array}  # fmt: skip
    add[type(value)](key, value)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    """Of smooth random colours."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
