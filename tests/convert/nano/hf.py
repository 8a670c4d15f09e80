"""The `transformers` models of the same shapes, to compare with."""

from __future__ import annotations

from typing import Any

import torch

from nextn.convert.nano.nano_network import Network
from nextn.convert.nano.nano_shapes import NanoShape


def hf_config(shape: NanoShape) -> Any:
    import transformers

    common: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.rms_norm_eps,
        "tie_word_embeddings": shape.tie_word_embeddings,
    }
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rope_theta}
    if not shape.is_hybrid:
        return transformers.Qwen3Config(**common, rope_parameters=rope)
    pairs = shape.rotary_dim // 2
    sections = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
    rope |= {
        "partial_rotary_factor": shape.partial_rotary_factor,
        "mrope_section": sections,
        "mrope_interleaved": True,
    }
    return transformers.Qwen3_5TextConfig(
        **common,
        linear_num_key_heads=shape.linear_num_key_heads,
        linear_num_value_heads=shape.linear_num_value_heads,
        linear_key_head_dim=shape.linear_head_dim,
        linear_value_head_dim=shape.linear_head_dim,
        linear_conv_kernel_dim=shape.linear_conv_kernel_dim,
        full_attention_interval=shape.full_attention_interval,
        layer_types=[
            "linear_attention" if shape.is_recurrent(i) else "full_attention"
            for i in range(shape.num_hidden_layers)
        ],
        rope_parameters=rope,
    )


def hf_model(network: Network) -> Any:
    """With the network's weights; every name has to be known on both sides."""
    import transformers

    shape = network.shape
    kind = transformers.Qwen3_5ForCausalLM if shape.is_hybrid else transformers.Qwen3ForCausalLM
    model = kind(hf_config(shape)).eval().float()
    own = {k: v for k, v in network.state_dict().items() if not k.startswith("mtp.")}
    model.load_state_dict(own, strict=True)
    return model


def hf_mtp(network: Network, model: Any) -> Any:
    """transformers' MTP stack over the same trunk."""
    from transformers.modeling_layers import MtpModel

    model.config.num_mtp_layers = 1
    model.config.mtp_layer_types = ["full_attention"]
    head = MtpModel(model, 1).eval().float()
    names = {
        "fc": "eh_proj",
        "pre_fc_norm_embedding": "enorm",
        "pre_fc_norm_hidden": "hnorm",
        "norm": "post_norm",
        "layers.0": "mtp_block",
    }
    renamed: dict[str, torch.Tensor] = {}
    for name, value in network.mtp.state_dict().items():
        old = max((old for old in names if name.startswith(f"{old}.")), key=len)
        renamed[f"layers.0.{names[old]}{name.removeprefix(old)}"] = value
    missing, unexpected = head.load_state_dict(renamed, strict=False)
    assert not unexpected
    assert not [name for name in missing if name.startswith("layers.")]
    return head


def randomise(network: Network, seed: int = 0) -> Network:
    """Weights as of a trained model: none is zero, none is one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in network.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if name.endswith("embed_tokens.weight"):
                parameter.copy_(noise)
            elif parameter.ndim == 2:
                parameter.copy_(noise * parameter.shape[1] ** -0.5)
            elif name.endswith("A_log"):
                parameter.copy_(noise)
            else:
                parameter.add_(0.3 * noise)
    return network
