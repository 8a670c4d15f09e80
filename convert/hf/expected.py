"""What a complete model of a family must have, with shapes: what is missing is said by its name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ...core.errors import ModelError
from .families import Family
from .matrix import Planned
from .sizes import Sizes

Shape = tuple[int, ...]
SHOWN: Final = 4  # names in a message
# Of these the model computes without where they are absent.
OPTIONAL: Final = (
    "output.weight", "rope_freqs.weight", ".nextn.embed_tokens.weight",
    ".nextn.shared_head_head.weight", ".nextn.shared_head_norm.weight",
)  # fmt: skip


def check_complete(
    planned: Mapping[str, Planned], family: Family, sizes: Sizes, label: str, *, mtp_only: bool
) -> None:
    """One line for the first kind of fault there is."""
    expected = dict(_expected(planned, family, sizes, mtp_only=mtp_only))
    missing = [n for n in expected if n not in planned and not n.endswith(OPTIONAL)]
    missing = [name for name in missing if not name.endswith(".bias") or family.qkv_bias]
    if missing:
        head = tuple(f"blk.{n}." for n in range(sizes.n_layers, sizes.n_blocks))
        of_head = all(name.startswith(head) for name in missing)
        hint = "; the MTP head is incomplete, --no-mtp leaves it out" if of_head else ""
        raise ModelError(f"{label}: nothing in the checkpoint makes {_listing(missing)}{hint}")
    surplus = [name for name in planned if name not in expected]
    if surplus:
        sources = [f"{planned[name].source} ({name})" for name in surplus]
        raise ModelError(
            f"{label}: a {family.architecture} has no use for {_listing(sources)}; leaving it out "
            "would change the text"
        )
    for name, tensor in planned.items():
        if tensor.shape != expected[name]:
            raise ModelError(
                f"{label}: {tensor.source} makes {name} of shape {tensor.shape}, but by "
                f"config.json it is {expected[name]}"
            )


def _expected(
    planned: Mapping[str, Planned], family: Family, sizes: Sizes, *, mtp_only: bool
) -> Iterator[tuple[str, Shape]]:
    s = sizes
    # Rows may exceed the vocabulary, padded to a round number: the table itself decides.
    table = planned.get("token_embd.weight")
    n_vocab = s.n_vocab if table is None else table.shape[0]
    yield "token_embd.weight", (n_vocab, s.n_embd)
    yield "output_norm.weight", (s.n_embd,)
    yield "output.weight", (n_vocab, s.n_embd)
    if "rope_freqs.weight" in planned:
        yield "rope_freqs.weight", (s.head_dim // 2,)
    for n in range(s.n_layers if mtp_only else 0, s.n_blocks):
        block = f"blk.{n}."
        for name, shape in _block(planned, block, n, family, s):
            yield block + name, shape
        if n >= s.n_layers:
            yield f"{block}nextn.eh_proj.weight", (s.n_embd, 2 * s.n_embd)
            for name in ("enorm", "hnorm", "shared_head_norm"):
                yield f"{block}nextn.{name}.weight", (s.n_embd,)
            for name in ("embed_tokens", "shared_head_head"):
                yield f"{block}nextn.{name}.weight", (n_vocab, s.n_embd)


def _block(
    planned: Mapping[str, Planned], block: str, n: int, family: Family, s: Sizes
) -> Iterator[tuple[str, Shape]]:
    yield "attn_norm.weight", (s.n_embd,)
    yield ("post_attention_norm.weight" if family.is_hybrid else "ffn_norm.weight"), (s.n_embd,)
    if family.is_hybrid and s.recurrent[n]:
        yield from _delta_rule(family, s)
    else:
        yield from _attention(planned, block, family, s)
    experts = any(f"{block}ffn_{k}.weight" in planned for k in ("gate_inp", "gate_exps", "up_exps"))
    if experts:
        yield from _experts(family, s)
    else:
        yield from _dense(planned, block, s)


def _attention(
    planned: Mapping[str, Planned], block: str, family: Family, s: Sizes
) -> Iterator[tuple[str, Shape]]:
    n_q, n_kv = s.n_heads * s.head_dim, s.n_kv_heads * s.head_dim
    heights = {"attn_q": n_q * (1 + family.is_hybrid), "attn_k": n_kv, "attn_v": n_kv}
    for stem, height in heights.items():
        yield f"{stem}.weight", (height, s.n_embd)
        if family.qkv_bias or f"{block}{stem}.bias" in planned:
            yield f"{stem}.bias", (height,)
    yield "attn_output.weight", (s.n_embd, n_q)
    if f"{block}attn_output.bias" in planned:
        yield "attn_output.bias", (s.n_embd,)
    if family.architecture not in ("llama", "qwen2"):
        yield "attn_q_norm.weight", (s.head_dim,)
        yield "attn_k_norm.weight", (s.head_dim,)


def _delta_rule(family: Family, s: Sizes) -> Iterator[tuple[str, Shape]]:
    channels = 2 * s.n_key_rows + s.n_value_rows
    yield "attn_qkv.weight", (channels, s.n_embd)
    yield "attn_gate.weight", (s.n_value_rows, s.n_embd)
    yield "ssm_conv1d.weight", (channels, s.n_conv)
    yield "ssm_a", (s.n_value_heads,)
    yield "ssm_dt.bias", (s.n_value_heads,)
    yield "ssm_norm.weight", (s.linear_dim,)
    yield "ssm_out.weight", (s.n_embd, s.n_value_rows)
    if family.is_tiled:
        yield "ssm_beta.weight", (s.n_value_heads, s.n_embd)
        yield "ssm_alpha.weight", (s.n_value_heads, s.n_embd)
    else:
        yield "ssm_ba.weight", (2 * s.n_value_heads, s.n_embd)


def _experts(family: Family, s: Sizes) -> Iterator[tuple[str, Shape]]:
    yield "ffn_gate_inp.weight", (s.n_experts, s.n_embd)
    yield "ffn_gate_exps.weight", (s.n_experts, s.n_ff_expert, s.n_embd)
    yield "ffn_up_exps.weight", (s.n_experts, s.n_ff_expert, s.n_embd)
    yield "ffn_down_exps.weight", (s.n_experts, s.n_embd, s.n_ff_expert)
    if family.is_hybrid:
        yield "ffn_gate_inp_shexp.weight", (s.n_embd,)
        yield "ffn_gate_shexp.weight", (s.n_ff_shared, s.n_embd)
        yield "ffn_up_shexp.weight", (s.n_ff_shared, s.n_embd)
        yield "ffn_down_shexp.weight", (s.n_embd, s.n_ff_shared)


def _dense(planned: Mapping[str, Planned], block: str, s: Sizes) -> Iterator[tuple[str, Shape]]:
    shapes = {"ffn_gate": (s.n_ff, s.n_embd), "ffn_up": (s.n_ff, s.n_embd)}
    for stem, shape in {**shapes, "ffn_down": (s.n_embd, s.n_ff)}.items():
        yield f"{stem}.weight", shape
        if f"{block}{stem}.bias" in planned:
            yield f"{stem}.bias", shape[:1]


def _listing(names: list[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
