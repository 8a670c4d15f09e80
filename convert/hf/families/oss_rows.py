"""gpt-oss: keys, and experts, whose gates and ups lie in turn."""

from __future__ import annotations

from typing import Final

import numpy as np

from ....core.backend.layers import OAI_SLOPE
from ....core.gguf.printable import printable
from ....core.models.gpt_oss import LIMIT, PERIOD
from ..checkpoint_family import Keys, Planner, TensorMap
from ..matrix_rows import MatrixRows, Order, OutputTensor, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..mxfp4_matrix import Mxfp4Matrix
from ..rope_setting import RopeSetting
from .layer_kinds import windowed_layers
from .turned_experts import check_stack, put_turned

STEMS: Final = {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"}
WHOLE: Final = {"self_attn.sinks": "attn_sinks.weight"}
_HALVES: Final = {"gate": slice(0, None, 2), "up": slice(1, None, 2)}


def oss_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    for name, known in (("swiglu_alpha", OAI_SLOPE), ("swiglu_limit", LIMIT)):
        if (found := config.get(name)) is not None and found != known:
            raise config.error(f"{name} is {printable(found)}; GGUF's graph has {known} alone")
    is_windowed = windowed_layers(config, sizes.n_layers)
    usual = [i % PERIOD < PERIOD - 1 for i in range(sizes.n_layers)]
    return {
        "attention.sliding_window": config.size("sliding_window"),
        "attention.sliding_window_pattern": None if is_windowed == usual else is_windowed,
        "expert_feed_forward_length": sizes.n_ff_expert,
    }


def put_gate_up(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    for kind, rows in _HALVES.items():
        _put(mapping, f"{block}.ffn_{kind}_exps.weight", matrix, rows)


def put_down(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    _put(mapping, f"{block}.ffn_down_exps.weight", matrix, slice(None))


def put_gate_up_bias(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    columns = np.arange(matrix.n_columns, dtype=np.intp)
    for kind, part in _HALVES.items():
        _put_bias(mapping, f"{block}.ffn_{kind}_exps.bias", matrix, columns[part])


def put_down_bias(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    columns = np.arange(matrix.n_columns, dtype=np.intp)
    _put_bias(mapping, f"{block}.ffn_down_exps.bias", matrix, columns)


PLANNERS: Final[dict[str, Planner]] = {
    "mlp.experts.gate_up_proj": put_gate_up,
    "mlp.experts.gate_up_proj_bias": put_gate_up_bias,
    "mlp.experts.down_proj": put_down,
    "mlp.experts.down_proj_bias": put_down_bias,
}


def _put(mapping: TensorMap, name: str, matrix: StoredMatrix, rows: slice) -> None:
    """Some rows of each expert, which MXFP4 stores output by input, floats the other way."""
    n, _, n_in = check_stack(mapping, matrix)
    if isinstance(matrix, Mxfp4Matrix):
        order = np.arange(matrix.n_rows, dtype=np.intp).reshape(n, -1)[:, rows]
        whole = (n, order.shape[1], n_in)
        mapping.take(OutputTensor(name, whole, (MatrixRows(matrix, order.reshape(-1)),)))
        return
    put_turned(mapping, name, matrix, np.arange(matrix.n_columns)[rows])


def _put_bias(mapping: TensorMap, name: str, matrix: StoredMatrix, columns: Order) -> None:
    shape = matrix.n_rows, len(columns)
    mapping.take(OutputTensor(name, shape, (MatrixRows.all(matrix),), columns=columns))
