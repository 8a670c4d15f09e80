"""What a drafter's file says of itself, and the shapes that follow from it."""

from __future__ import annotations

from typing import Final, Self

from msgspec import Struct, field

from ...core.gguf.metadata import Metadata
from ...core.gguf.reader import GgufFile
from ...core.models.hparams import MAX_LAYERS, MAX_WIDTH
from .token_map import DRAFT_TO_TARGET

Shape = tuple[int, ...]
Shapes = dict[str, Shape]  # of tensors, by their whole names
MAX_BLOCK: Final = 1 << 12  # tokens of a pass
_TOKENS: Final = "tokenizer.ggml.tokens"


class DrafterDescription(Struct):
    words: str  # "an EAGLE3 drafter"
    architecture: str
    target_width: int  # of the target's rows that it reads
    n_vocab: int  # of the target; 0: nothing says
    target_architecture: str = ""  # "": any
    layers: tuple[int, ...] = ()  # of the target, whose inputs it reads
    n_head: int = 0  # rows of its own head
    block_size: int = 0  # tokens of a pass; 0: it drafts one by one
    most: int = 0  # draft tokens of a pass
    mask: int | None = None  # the token that stands for those to be drafted
    required: Shapes = field(default_factory=dict)
    optional: Shapes = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)  # of keys and tensors that do not fit
    refusals: list[str] = field(default_factory=list)  # why llama.cpp does not load it
    remarks: list[str] = field(default_factory=list)  # how it would draft badly there
    unknown: str = ""  # what its tensors are for, where that is known to llama.cpp alone

    @property
    def shares(self) -> list[str]:
        """What it takes from the target."""
        shared = {
            "embeddings": "token_embd.weight" not in self.required,
            "head": not self.n_head,
        }
        return [word for word, is_shared in shared.items() if is_shared]


class DrafterSizes(Struct, frozen=True):
    n_layers: int
    n_embd: int
    n_ff: int
    n_heads: int
    n_kv_heads: tuple[int, ...]  # of each layer
    key_dim: int
    value_dim: int

    @classmethod
    def read(cls, meta: Metadata) -> Self:
        def size(key: str, default: int | None = None, high: int = MAX_WIDTH) -> int:
            if default is None:
                return meta.int(key, low=1, high=high)
            return meta.int(key, default, low=1, high=high)

        meta.int("context_length", low=1)
        meta.float("attention.layer_norm_rms_epsilon", low=0.0, high=1.0)
        n_embd, n_heads = size("embedding_length"), size("attention.head_count")
        head, n_layers = n_embd // n_heads or 1, size("block_count", high=MAX_LAYERS)
        return cls(
            n_layers,
            n_embd,
            size("feed_forward_length"),
            n_heads,
            meta.per_layer_ints("attention.head_count_kv", n_layers, n_heads, 1, MAX_WIDTH),
            size("attention.key_length", head),
            size("attention.value_length", head),
        )

    def block(self, n: int, n_in: int, attention: Shapes | None = None) -> Shapes:
        """Attention and feed-forward of a block whose attention reads rows of `n_in`. `attention`:
        matrices of another kind."""
        e = self.n_embd
        shapes: Shapes = {
            "attn_norm.weight": (e,),
            **(self._grouped(n, n_in) if attention is None else attention),
            "ffn_norm.weight": (e,),
            "ffn_gate.weight": (self.n_ff, e),
            "ffn_up.weight": (self.n_ff, e),
            "ffn_down.weight": (e, self.n_ff),
        }
        return in_block(n, shapes)

    def _grouped(self, n: int, n_in: int) -> Shapes:
        return {
            "attn_q.weight": (self.n_heads * self.key_dim, n_in),
            "attn_k.weight": (self.n_kv_heads[n] * self.key_dim, n_in),
            "attn_v.weight": (self.n_kv_heads[n] * self.value_dim, n_in),
            "attn_output.weight": (self.n_embd, self.n_heads * self.value_dim),
        }


def latent_block(meta: Metadata, sizes: DrafterSizes, n_in: int) -> Shapes:
    """Attention over latent vectors (MLA) that reads rows of `n_in`, without its norm."""

    def size(key: str) -> int:
        return meta.int(key, low=1, high=MAX_WIDTH)

    e, n_heads = sizes.n_embd, sizes.n_heads
    head, value = size("attention.key_length_mla"), size("attention.value_length_mla")
    n_rot, latent = size("rope.dimension_count"), size("attention.kv_lora_rank")
    shapes: Shapes = {"attn_q.weight": (n_heads * head, n_in)}
    if rank := meta.int("attention.q_lora_rank", 0, low=0, high=MAX_WIDTH):
        shapes = {
            "attn_q_a.weight": (rank, n_in),
            "attn_q_a_norm.weight": (rank,),
            "attn_q_b.weight": (n_heads * head, rank),
        }
    return shapes | {
        "attn_kv_a_mqa.weight": (latent + n_rot, n_in),
        "attn_kv_a_norm.weight": (latent,),
        "attn_k_b.weight": (n_heads, latent, head - n_rot),
        "attn_v_b.weight": (n_heads, value, latent),
        "attn_output.weight": (e, n_heads * value),
    }


def in_block(n: int, shapes: Shapes) -> Shapes:
    return {f"blk.{n}.{stem}": shape for stem, shape in shapes.items()}


def count_vocabulary(file: GgufFile) -> int:
    """Tokens of the target: by embeddings, by the key, by the tokenizer. 0: nothing says."""
    table, meta = file.tensors.get("token_embd.weight"), file.metadata
    if table is not None and len(table.shape) == 2:
        return table.shape[0]
    n_tokens = len(meta.entry(_TOKENS).value) if _TOKENS in meta else 0
    return meta.int("vocab_size", n_tokens, low=0)


def add_vocabulary(file: GgufFile, described: DrafterDescription, n_embd: int) -> None:
    """Embeddings, head and map of tokens: each is the target's unless the file has it."""
    tensors, n_vocab = file.tensors, described.n_vocab
    if "token_embd.weight" in tensors:
        described.required["token_embd.weight"] = (n_vocab, n_embd)
    n_head, ids = n_vocab, tensors.get(DRAFT_TO_TARGET)
    if ids is not None:
        n_head = ids.n_elements
        described.required |= {DRAFT_TO_TARGET: (n_head,), "output.weight": (n_head, n_embd)}
    elif "output.weight" in tensors:
        described.required["output.weight"] = (n_head, n_embd)
    described.n_head = n_head if "output.weight" in described.required else 0
    if described.shares and n_embd != described.target_width:
        lacks = " and no ".join(described.shares)
        described.complaints.append(
            f"it is {n_embd} wide and has no {lacks} of its own, its target is "
            f"{described.target_width} wide"
        )


def read_layers(meta: Metadata, described: DrafterDescription, n_expected: int = 0) -> None:
    """`n_expected`: 0 for any number of them."""
    key, n_trunk = "target_layers", MAX_LAYERS
    described.layers = layers = tuple(meta.ints(key))
    full = meta.full_key(key)
    if n_expected and len(layers) != n_expected:
        described.complaints.append(
            f"{full} names {len(layers)} layers of the target, expected {n_expected}"
        )
    elif not layers or not all(0 <= layer <= n_trunk for layer in layers):
        described.complaints.append(
            f"{full} is {list(layers)[:8]}, expected layers of the target, 0 to {n_trunk}"
        )
