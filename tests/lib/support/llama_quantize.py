"""Which type llama-quantize gives to each tensor, for the mixtures that are measured.

From `llama_tensor_get_type_impl` and `tensor_allows_quantization` of llama.cpp's
src/llama-quant.cpp (2026, the version that sorts tensors into categories first). Three things are
easily missed there: with tied embeddings the token table is the output matrix, and gets Q6_K even
in a Q4_0 file; `attn_qkv` counts as an `attn_v`, so that its own rule (Q5_K) is never reached; and
those two are counted together, one for each layer of a hybrid. Files made by these rules have the
sizes of the native table that figures are held against (368, 396 and 663 MiB, with an output matrix
of its own and an MTP block); with Q5_K for `attn_qkv` the second would be 394.
"""

from __future__ import annotations

from collections.abc import Mapping

MIXTURES = ("Q4_0", "Q4_K_M", "Q8_0")
# Never quantised, whatever the mixture; norms and biases have one dimension and need no word.
FLOAT_STEMS = ("ssm_conv1d", "shortconv.conv.", "ssm_norm", "ffn_gate_inp.weight")
FLOAT_ENDS = (".ssm_a", ".ssm_d")


def is_float(name: str, shape: tuple[int, ...]) -> bool:
    if len(shape) < 2 or name.endswith(FLOAT_ENDS):
        return True
    return any(stem in name for stem in FLOAT_STEMS)


def mixture_types(shapes: Mapping[str, tuple[int, ...]], mixture: str) -> dict[str, str]:
    """The type of every tensor by its name; of a model that has not exactly 8 experts."""
    if mixture not in MIXTURES:
        raise ValueError(f"no mixture {mixture!r}; choose one of {', '.join(MIXTURES)}")
    blocks = [int(name.split(".")[1]) for name in shapes if name.startswith("blk.")]
    n_layers = max(blocks) + 1
    output = "output.weight" if "output.weight" in shapes else "token_embd.weight"
    kinds = {}
    for name, shape in shapes.items():
        if is_float(name, shape):
            kinds[name] = "F32"
        elif name == output:
            kinds[name] = "Q8_0" if mixture == "Q8_0" else "Q6_K"
        else:
            kinds[name] = _k_mixture(name, n_layers) if mixture == "Q4_K_M" else mixture
    return kinds


def _k_mixture(name: str, n_layers: int) -> str:
    if any(stem in name for stem in ("attn_v.", "attn_qkv.", "ffn_down")):
        layer = int(name.split(".")[1])
        return "Q6_K" if _uses_more_bits(layer, n_layers) else "Q4_K"
    return "Q4_K"


def _uses_more_bits(layer: int, n_layers: int) -> bool:
    eighth = n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2
