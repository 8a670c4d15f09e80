"""Tiny random models that see images: of `transformers`, as an mmproj file of the same weights, and
their text model as a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from nextn.core.backend import create_backend
from nextn.core.backend.layers import Floats
from nextn.core.gguf.reader import open_gguf
from nextn.core.vision.image_encoder import ImageEncoder
from nextn.core.vision.image_prompt import PlacedImage
from nextn.core.vision.load_images import load_images
from nextn.core.vision.mmproj_options import MmprojOptions
from nextn.core.vision.pixels import ImagePlan
from nextn.core.vision.projector import PreparedImage

from .checkpoints import write_tokenizer
from .converting import convert
from .tiny_models import COMMON, HYBRID

Config = dict[str, Any]
Tensors = dict[str, NDArray[np.float32]]
Prepared = tuple[list[PreparedImage], ImagePlan]  # of one image
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
    # Names in the file of a tensor, and of how many layers: for the tensors of Qwen's towers.
    map: Callable[[str, int], list[str]] = lambda _name, _n: []
    family: TowerFamily = field(default_factory=lambda: QWEN)


class TowerFamily:
    """How `transformers` has towers of Qwen's models; other families change what differs there."""

    ids: ClassVar[Config] = IDS
    marks: ClassVar[dict[int, str]] = MARKS

    def adjust(self, hf: Any) -> None:
        """Of random weights, what no checkpoint is like."""

    def text_of(self, hf: Any) -> Any:
        """The text model as a checkpoint of its own; None: the converter finds it in the whole."""
        return None

    def processor(self, case: TowerCase) -> Config:
        """What else the checkpoint says of how images are prepared."""
        return {}

    def tensors(self, case: TowerCase, hf: Any) -> Tensors:
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
            out |= {each: np.ascontiguousarray(p) for each, p in zip(names, parts, strict=True)}
        return out

    def keys(self, case: TowerCase, hf: Any) -> Config:
        """What depends on the configuration."""
        vision = hf.config.vision_config
        n_embd = getattr(vision, "embed_dim", None) or vision.hidden_size
        is_qwen3 = case.projector == "qwen3vl_merger"
        n_ff = getattr(vision, "intermediate_size", None) or int(n_embd * vision.mlp_ratio)
        return {
            "clip.vision.embedding_length": n_embd,
            "clip.vision.feed_forward_length": n_ff,
            "clip.vision.block_count": vision.depth,
            "clip.vision.attention.head_count": vision.num_heads,
            "clip.vision.attention.layer_norm_epsilon": 1e-6,
            "clip.vision.image_size": 6 * 16 if is_qwen3 else 560,
            "clip.vision.spatial_merge_size": 2,
        }

    def inputs(self, images: Sequence[Prepared]) -> dict[str, torch.Tensor]:
        """What `transformers` reads of images."""
        pixels, grids = [], []
        for (image,), _plan in images:
            flat = image.patches.reshape(len(image.patches), 3, 1, -1)
            pixels.append(np.repeat(flat, 2, axis=2).reshape(len(flat), -1))
            grids.append([1, image.grid.height, image.grid.width])
        return {
            "pixel_values": torch.from_numpy(np.concatenate(pixels)),
            "image_grid_thw": torch.tensor(grids),
        }

    def features(self, hf: Any, image: Prepared) -> Floats:
        """Rows of an image, and those for layers."""
        pixels, thw = self.inputs([image]).values()
        found = hf.model.visual(pixels, grid_thw=thw, return_dict=True)
        deep = getattr(found, "deepstack_features", None) or []
        return np.concatenate([found.pooler_output.numpy(), *(d.numpy() for d in deep)], axis=1)

    def tokens_of(self, image: PlacedImage) -> list[int]:
        """What stands for an image in the tokens that `transformers` sees."""
        first, *others = image.image.plan.runs
        tokens = [PLACE] * first
        for between, n in zip(image.between, others, strict=True):
            tokens += [*between, *[PLACE] * n]
        return tokens

    def logits(self, hf: Any, tokens: list[int], images: Sequence[Prepared]) -> Floats:
        ids = torch.tensor([tokens])
        kinds = {"mm_token_type_ids": (ids == PLACE).long()} if self.marks is MARKS else {}
        found = hf(input_ids=ids, **kinds, **self.inputs(images))
        made: Floats = found.logits[0].numpy()
        return made


QWEN: TowerFamily = TowerFamily()


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

    def features(self, image: Prepared) -> Floats:
        """What `transformers` makes of an image: rows, and those for layers."""
        with torch.no_grad():
            return self.case.family.features(self.hf, image)

    def logits(self, tokens: list[int], images: Sequence[Prepared]) -> Floats:
        """Of tokens, in which images have their places, see `TowerFamily.tokens_of`."""
        with torch.no_grad():
            return self.case.family.logits(self.hf, tokens, images)


def find_case(name: str) -> TowerCase:
    from .gemma_towers import GEMMA_TOWERS
    from .other_towers import OTHER_TOWERS

    return (TOWERS | OTHER_TOWERS | GEMMA_TOWERS)[name]


def build_vision_model(name: str, folder: Path, *, kind: str = "F32") -> TinyVisionModel:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    case = find_case(name)
    family = case.family
    torch.manual_seed(0)
    config = getattr(transformers, f"{case.name}Config")(
        vision_config=case.vision, text_config=case.text, **family.ids
    )
    config._attn_implementation = "eager"
    hf = getattr(transformers, f"{case.name}ForConditionalGeneration")(config).eval().float()
    randomise_tower(hf)
    family.adjust(hf)
    own = folder / name
    hf.save_pretrained(own)
    text_model, source = family.text_of(hf), own
    if text_model is not None:
        source = folder / f"{name}-text"
        text_model.save_pretrained(source)
    for each in {own, source}:
        write_tokenizer(each)
        add_marks(each, family.marks)
    prepared = {"image_mean": case.mean, "image_std": case.std, **family.processor(case)}
    (own / "preprocessor_config.json").write_text(json.dumps(prepared))
    text = convert(source, folder / f"{name}.gguf")
    mmproj = folder / f"mmproj-{name}-{kind}.gguf"
    write_mmproj(mmproj, case, hf, kind)
    return TinyVisionModel(case, hf, own, mmproj, text)


def randomise_tower(hf: torch.nn.Module) -> None:
    """Tables of positions, norms and biases as well: what is usual at first hides errors."""
    limits = {"input_min": -1.5, "input_max": 1.2, "output_min": -1.4, "output_max": 1.6}
    with torch.no_grad():
        for name, value in hf.named_buffers():
            word = name.rpartition(".")[2]
            if word in limits:
                value.fill_(limits[word])
            elif word in ("std_bias", "std_scale"):
                value.normal_(float(word == "std_scale"), 0.2)
        for name, value in hf.named_parameters():
            if value.ndim == 1:
                is_norm = "norm" in name or "ln_q" in name
                value.normal_(1.0 if is_norm and name.endswith("weight") else 0.0, 0.2)
            elif any(word in name for word in ("embed_tokens", "pos_embed", "position", "cls_")):
                value.normal_(0.0, 1.0)
            else:
                value.normal_(0.0, value[0].numel() ** -0.5)


def add_marks(folder: Path, marks: dict[int, str]) -> None:
    path = folder / "tokenizer.json"
    definition = json.loads(path.read_text())
    definition["added_tokens"] += [
        {"id": i, "content": text, "special": True, "normalized": False, "single_word": False,
         "lstrip": False, "rstrip": False}
        for i, text in marks.items()
    ]  # fmt: skip
    path.write_text(json.dumps(definition))


def size_keys(vision: Any, eps: float, image_size: int) -> Config:
    """Of towers whose configurations name sizes as SigLIP's does."""
    return {
        "clip.vision.embedding_length": vision.hidden_size,
        "clip.vision.feed_forward_length": vision.intermediate_size,
        "clip.vision.block_count": vision.num_hidden_layers,
        "clip.vision.attention.head_count": vision.num_attention_heads,
        "clip.vision.attention.layer_norm_epsilon": eps,
        "clip.vision.image_size": image_size,
    }


def cpu_encoder(found: TinyVisionModel, path: Path) -> ImageEncoder:
    """Of an mmproj file for the text model of `found`."""
    with open_gguf(found.text) as model:
        return load_images(MmprojOptions(path), model, create_backend("cpu", 1))


def tower_keys(case: TowerCase, hf: Any) -> Config:
    keys = {
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": case.projector,
        "clip.vision.projection_dim": 64,
        "clip.vision.patch_size": hf.config.vision_config.patch_size,
        "clip.vision.image_mean": case.mean,
        "clip.vision.image_std": case.std,
    }
    return keys | case.family.keys(case, hf) | case.keys


def write_mmproj(path: Path, case: TowerCase, hf: Any, kind: str = "F32", **edits: Any) -> None:
    """`edits`: keys by their last word, or whole ones that are not there; None leaves one out.
    `tensors`: a function that may change these."""
    tensors, keys = case.family.tensors(case, hf), tower_keys(case, hf)
    change = edits.pop("tensors", None)
    if change is not None:
        change(tensors)
    for word, value in edits.items():
        keys[next((key for key in keys if key.endswith(f".{word}")), word)] = value
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
