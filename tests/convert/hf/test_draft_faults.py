"""What can be wrong with the checkpoint of a drafter, or with the target named for it: one line
each, and no file.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.converting import check_line, convert, plan
from support.draft_checkpoints import (
    CASES,
    Arrays,
    Config,
    DraftCheckpoint,
    Edit,
    build_draft_checkpoint,
)
from support.thoroughness import n_examples
from support.tiny_models import build_tiny

from nextn.convert.checkpoint import open_checkpoint
from nextn.convert.hf import Options, plan_conversion
from nextn.convert.hf.drafters import open_target
from nextn.core.errors import NextnError


def without(*names: str) -> Edit:
    def edit(config: Config, arrays: Arrays) -> None:
        for name in names:
            del arrays[name]

    return edit


def with_array(name: str, *shape: int, dtype: Any = np.float32) -> Edit:
    return lambda config, arrays: arrays.update({name: np.zeros(shape, dtype)})


def with_setting(**values: Any) -> Edit:
    return lambda config, arrays: config.update(values)


def in_part(part: str, **values: Any) -> Edit:
    return lambda config, arrays: config[part].update(values)


def without_setting(name: str, part: str = "") -> Edit:
    def edit(config: Config, arrays: Arrays) -> None:
        del (config[part] if part else config)[name]

    return edit


def with_offset(row: int, offset: int) -> Edit:
    def edit(config: Config, arrays: Arrays) -> None:
        arrays["d2t"][row] = offset

    return edit


FC, EAGLE, FLASH = "fc.weight", "eagle3-specforge", "dflash"
FAULTS: list[tuple[str, Edit, str]] = [
    # the map of tokens
    (EAGLE, with_offset(3, 600), r"d2t\[3\] is 603, expected a token of the target, 0 to 511"),
    (EAGLE, with_offset(0, -1), r"d2t\[0\] is -1, expected"),
    (EAGLE, with_offset(3, 2**63 - 1), r"d2t\[3\] is -\d+, expected"),
    ("dspark-speculators", lambda c, a: a.update(d2t=-np.arange(96)), "names token 0 twice"),
    (EAGLE, lambda c, a: a.update(d2t=np.zeros(90, np.int64)), r"lm_head.* expected \(90, 64\)"),
    (EAGLE, with_array("d2t", 0, dtype=np.int64), "d2t is empty"),
    (EAGLE, with_array("d2t", 96, 1, dtype=np.int64), r"'d2t' is I64 of shape \(96, 1\)"),
    (EAGLE, with_array("d2t", 96), "'d2t' is F32 of shape"),
    ("dspark-speculators", without("d2t"), r"lm_head.* shape \(96, 64\), expected \(512, 64\)"),
    (EAGLE, without("lm_head.weight"), "nothing in the checkpoint makes output.weight"),
    # tensors
    (EAGLE, without(FC), "nothing in the checkpoint makes fc.weight"),
    (EAGLE, without("midlayer.hidden_norm.weight"), "makes blk.0.attn_norm_2.weight"),
    (EAGLE, with_array(FC, 64, 128), r"fc.weight does not fit .*\(64, 128\), expected \(64, 192\)"),
    (EAGLE, with_array("midlayer.self_attn.q_proj.weight", 64, 64), r"expected \(64, 128\)"),
    (EAGLE, with_array("midlayer.self_attn.q_norm.weight", 16), "makes blk.0.attn_k_norm.weight"),
    (EAGLE, with_array("midlayer.mlp.other.weight", 16), "other.weight' has no place"),
    (EAGLE, with_array("input_norm.weight", 192), "no use for input_norm.weight"),
    (EAGLE, with_array("fc_norm.0.weight", 64), "makes fc_norm.1.weight, fc_norm.2.weight"),
    (EAGLE, with_array("layers.1.mlp.up_proj.weight", 96, 64), "config.json's count"),
    ("eagle3-normed", without("input_norm.weight"), "makes enc.output_norm.weight"),
    ("eagle3-normed", without("embed_tokens.weight"), "64 wide and has no embeddings .* 80 wide"),
    (FLASH, without("hidden_norm.weight"), "makes enc.output_norm.weight"),
    (FLASH, without("layers.1.self_attn.k_norm.weight"), "makes blk.1.attn_k_norm.weight"),
    (FLASH, with_array("layers.0.self_attn.q_norm.weight", 8), r"\(8,\), expected \(16,\)"),
    (FLASH, with_array("embed_tokens.weight", 500, 64), "its vocabulary has 500 rows, .* 512"),
    ("dflash2", without("candidate_selector.hidden_projection.weight"), "makes selector_hidden"),
    ("dflash2", without("layers.1.mlp_conv.base_kernel"), "makes blk.1.ffn_conv_base"),
    ("dflash2", with_array("layers.0.mlp_conv.base_kernel", 2, 3, 64), r"expected \(2, 2, 64\)"),
    ("dspark-specforge", without("markov_head.markov_w2.weight"), "makes markov_w2.weight"),
    ("dspark-deepspec", with_array("markov_head.joint_proj.weight", 9, 9), "has no place"),
    ("dspark-gemma4", without("lm_head.weight"), "makes output.weight, and .* does not tie"),
    ("assistant", without("post_projection.weight"), "makes nextn.post_projection.weight"),
    ("assistant", with_array("pre_projection.weight", 48, 96), r"expected \(48, 128\)"),
    ("assistant", with_array("model.layers.0.self_attn.k_proj.weight", 32, 48), "no use for"),
    # config.json
    (EAGLE, with_setting(architectures=["PEagleDraftModel"]), "no architecture for P-EAGLE"),
    (EAGLE, with_setting(architectures=["MyEagle4Model"]), "'MyEagle4Model' cannot be converted"),
    (EAGLE, with_setting(num_hidden_layers=2), "nothing in the checkpoint makes blk.1.attn_norm"),
    (EAGLE, with_setting(eagle_config={"use_aux_hidden_state": False}), "last row alone"),
    (EAGLE, with_setting(eagle_config={"next_layer_regular": False}), "layers read embeddings"),
    (EAGLE, with_setting(eagle_config={"norm_before_fc": "no"}), "is 'no', not true or false"),
    (EAGLE, with_setting(hidden_act="gelu"), "hidden_act is 'gelu'"),
    (EAGLE, with_setting(eagle_aux_hidden_state_layer_ids=[1, 2]), "reads rows of 96, .* of 64"),
    (EAGLE, with_setting(eagle_aux_hidden_state_layer_ids=[1, 2, -3]), "not a list of layers"),
    (EAGLE, with_setting(eagle_aux_hidden_state_layer_ids=[1, 2, 9]), "layers 1, 2, 9, .* has 8"),
    (EAGLE, with_setting(eagle_aux_hidden_state_layer_ids="all"), "is 'all', not a list"),
    (EAGLE, with_setting(target_hidden_size=128), "reads rows of 128, .* has rows of 64"),
    (EAGLE, with_setting(norm_before_fc=1), "norm_before_fc is 1, not true or false"),
    ("eagle3-speculators", with_setting(fc_norm=True), "nothing in the checkpoint makes fc_norm.0"),
    ("eagle3-speculators", with_setting(transformer_layer_config=[]), "is .., not an object"),
    ("eagle3-speculators", with_setting(architectures=[], speculators_model_type="mlp"), "'mlp'"),
    (FLASH, without_setting("mask_token_id", "dflash_config"), "mask_token_id is missing"),
    (FLASH, in_part("dflash_config", mask_token_id=512), "is 512, but the vocabulary has 512"),
    (FLASH, in_part("dflash_config", mask_token_id="<m>"), "mask_token_id is '<m>', not a token"),
    (FLASH, without_setting("target_layer_ids", "dflash_config"), "target_layer_ids is missing"),
    (FLASH, in_part("dflash_config", target_layer_ids=[1, 3, 8]), "layers 2, 4, 9, .* has 8"),
    (FLASH, in_part("dflash_config", target_layer_ids=[]), "not a list of layers"),
    (FLASH, in_part("dflash_config", target_layer_ids=[1, 3]), "rows of 96, .* rows of 64"),
    (FLASH, with_setting(block_size=1), "block_size is 1: nothing would be drafted"),
    (FLASH, with_setting(block_size=0), "block_size is 0, not a size"),
    (FLASH, in_part("dflash_config", projector_type="domino"), "projector_type is 'domino'"),
    (FLASH, with_setting(rope_is_neox_style="no"), "is 'no', not true or false"),
    ("dflash2", in_part("dflash_config", conv_group_size=5), "5, which does not divide 64"),
    ("dflash2", without_setting("selector_rank", "dflash_config"), "selector_rank is missing"),
    ("dspark-deepspec", with_setting(markov_head_type="rnn"), "is 'rnn'; GGUF has vanilla alone"),
    ("dspark-gemma4", with_setting(attention_k_eq_v=False), "attention_k_eq_v is not true"),
    ("assistant", with_setting(backbone_hidden_size=80), "rows of 80, .* rows of 64"),
    ("assistant", without_setting("backbone_hidden_size"), "backbone_hidden_size is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "edit", "message"), FAULTS)
def test_checkpoints(name: str, edit: Edit, message: str, tmp_path: Path) -> None:
    made = build_draft_checkpoint(name, tmp_path, edit=edit)
    with pytest.raises(NextnError, match=message) as caught:
        convert(made.folder, tmp_path / "out.gguf", target=open_target(str(made.target)))
    check_line(caught.value)
    assert not (tmp_path / "out.gguf").exists()


def test_a_pickled_mask_is_not_read(tmp_path: Path) -> None:
    made = build_draft_checkpoint("dflash", tmp_path)
    (made.folder / "mask_embedding.pt").write_bytes(b"PK\x03\x04")
    with pytest.raises(NextnError, match="as a pickle, which can run code"):
        plan(made.folder, target=open_target(str(made.target)))


# Targets -----------------------------------------------------------------------------------------


def test_without_a_target(tmp_path: Path) -> None:
    """Where one is needed, and what for."""
    made = build_draft_checkpoint("dflash", tmp_path)
    with pytest.raises(NextnError, match=r"has no tokenizer, .* --target-model-dir .a folder"):
        plan(made.folder)
    made = build_draft_checkpoint("eagle3-speculators", tmp_path)
    with pytest.raises(NextnError, match=r"config.json names 'owner/target'"):
        plan(made.folder)
    made = build_draft_checkpoint("eagle3-specforge", tmp_path, own_tokenizer=True)
    with pytest.raises(NextnError, match=r"usual places depend .* give --target-model-dir"):
        plan(made.folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 80}, "reads rows of 64, .*-target has rows of 80"),
        ({"num_hidden_layers": 6}, "reads layers 2, 4, 7, .*-target has 6"),
        ({"vocab_size": 400}, r"d2t\[\d+\] is 4\d\d, expected a token of the target, 0 to 399"),
        ({"hidden_size": None}, "-target: config.json: hidden_size is missing"),
    ],
)
def test_another_target(changes: Config, message: str, tmp_path: Path) -> None:
    made = build_draft_checkpoint("dspark-speculators", tmp_path)
    path = made.target / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(NextnError, match=message) as caught:
        plan(made.folder, target=open_target(str(made.target)))
    check_line(caught.value)


def test_an_assistant_for_another_family(tmp_path: Path) -> None:
    made = build_draft_checkpoint("assistant", tmp_path)
    target = build_tiny("qwen3", tmp_path).path
    with pytest.raises(NextnError, match=r"drafts for a gemma4, .*gguf is a qwen3"):
        plan(made.folder, target=open_target(str(target)))


def test_what_is_no_target(tmp_path: Path) -> None:
    with pytest.raises(NextnError, match=r"the folder has no config.json and no GGUF"):
        open_target(str(tmp_path))
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(NextnError, match="2 GGUF files: give one of them"):
        open_target(str(tmp_path))
    with pytest.raises(NextnError, match="no such file or folder"):
        open_target(str(tmp_path / "nothing"))
    with pytest.raises(NextnError):
        open_target(str(tmp_path / "a.gguf"))


def test_heads_are_for_models(tmp_path: Path) -> None:
    made = build_draft_checkpoint("dflash", tmp_path)
    for mtp in ("without", "only"):
        with pytest.raises(NextnError, match="holds a DFlash drafter: --no-mtp and --mtp-only"):
            plan(made.folder, target=open_target(str(made.target)), mtp=mtp)


# Any configuration -------------------------------------------------------------------------------

VALUES = st.none() | st.booleans() | st.integers(-3, 600) | st.floats() | st.sampled_from(
    ["", "dspark", [], [1, 2, 3], {}, {"rope_type": "yarn"}, 2**70, [None], {"mask_token_id": []}]
)  # fmt: skip
NAMES = sorted(
    {key for case in CASES.values() for key in case.config}
    | {"is_causal", "has_embed_tokens", "rope_is_neox_style", "eagle_config", "output_multiplier",
       "swa_window_size", "use_swa", "causal", "rope_scaling", "partial_rotary_factor"}
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], DraftCheckpoint]:
    folder = tmp_path_factory.mktemp("drafters")
    built: dict[str, DraftCheckpoint] = {}
    return lambda name: built.setdefault(name, build_draft_checkpoint(name, folder))


@settings(max_examples=n_examples(60), deadline=None)
@given(
    name=st.sampled_from(sorted(CASES)),
    changes=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3),
)
def test_any_configuration(
    made: Callable[[str], DraftCheckpoint], name: str, changes: dict[str, Any]
) -> None:
    found = made(name)
    with open_checkpoint(found.folder) as checkpoint:
        checkpoint.config = found.config | changes
        try:
            options = Options(target=open_target(str(found.target)))
            plan_conversion(checkpoint, found.folder, options)
        except NextnError as error:
            check_line(error)
