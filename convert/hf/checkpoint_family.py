"""What is known of one family of checkpoints: a row of data, with functions for what a name, a
number or a flag cannot say. The rows are in `families`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ..heads.family_table import find_mtp_family
from .tokenizer.tokenizer_traits import USUAL, TokenizerTraits

if TYPE_CHECKING:
    from ..checkpoint.safetensors import Floats
    from .matrix_rows import Order, StoredMatrix
    from .model_config import ModelConfig
    from .model_sizes import ModelSizes
    from .rope_setting import RopeSetting
    from .tensor_map import TensorMap

Keys = dict[str, Any]
KeyWriter = Callable[["ModelConfig", "ModelSizes", "RopeSetting"], Keys]
Planner = Callable[["TensorMap", str, "StoredMatrix"], None]  # the block, `blk.0` for one
Orderer = Callable[["TensorMap", "StoredMatrix"], "Order | None"]
SizeReader = Callable[["ModelConfig", int, int], Keys]  # layers, heads
FactorMaker = Callable[["ModelConfig", "ModelSizes", "RopeSetting"], "Floats | None"]
UNSHIFTED = "ssm_norm.weight"  # multiplies as it is, in families that shift all other norms


class MtpPlace(Enum):
    """Where the blocks of MTP heads are."""

    NONE = "none"
    APART = "apart"  # `mtp.layers.N`; what is beside them under `mtp.` is shared by all heads
    BEHIND = "behind"  # `layers.N`, N from the number of layers on


class RopeTraits(Struct, frozen=True):
    """What config.json does not say of rotary positions, or GGUF has in another way."""

    share: float = 1.0  # of a head that turns, where the configuration says nothing
    is_partial: bool = False  # whether a part may turn at all
    sections: tuple[int, ...] | None = None  # the default; None where GGUF has no sections
    kinds: tuple[str, ...] = ()  # `rope_type`s that are a tensor of factors
    has_window_base: bool = False  # windowed layers have a base of their own
    # YaRN's magnitude is a key of its own (a tenth of mscale_all_dim), not a factor.
    has_log_multiplier: bool = False
    whole_pairs: bool = True  # YaRN's ramp, for readers of a file that does not say so


class CheckpointFamily(Struct, frozen=True):
    """Tensors that no row names have the names that heads of this architecture have (`heads`)."""

    architecture: str  # GGUF's word
    rope_theta: float = 10000.0  # the default, as are the next two
    rms_eps: float = 1e-6
    head_dim: int = 0  # 0: width divided by heads
    defaults: Keys = field(default_factory=dict)  # of config.json
    activations: tuple[str, ...] = ("silu", "swish")
    is_tied: bool = False  # checkpoints have no output matrix
    rope: RopeTraits = RopeTraits()
    mtp: MtpPlace = MtpPlace.NONE
    # Of a tensor of MTP heads, where several layers of the checkpoint are one block.
    head_name: Callable[[str], str] = lambda name: name
    shifted_norms: bool = False  # x * (1 + w): checkpoints hold w, GGUF holds 1 + w
    stems: Mapping[str, str] = field(default_factory=dict)  # in a block, without `.weight`
    whole: Mapping[str, str] = field(default_factory=dict)  # in a block, with their endings
    outside: Mapping[str, str] = field(default_factory=dict)  # of no block
    planners: Mapping[str, Planner] = field(default_factory=dict)  # by whole name in a block
    orders: Mapping[str, Orderer] = field(default_factory=dict)  # of rows, by GGUF stem
    column_orders: Mapping[str, Orderer] = field(default_factory=dict)
    finish: Callable[[TensorMap], None] | None = None  # after all tensors are placed
    sizes: SizeReader = lambda config, n_layers, n_mtp: {}
    keys: KeyWriter = lambda config, sizes, rope: {}
    rope_factors: FactorMaker = lambda config, sizes, rope: rope.factors
    is_windowed: bool = False  # GGUF has keys for the window
    # The row that is meant, where one `model_type` stands for several architectures.
    variant: Callable[[ModelConfig], str | None] = lambda config: None
    tokenizer: TokenizerTraits = USUAL

    def stem(self, inner: str) -> str | None:
        """The GGUF name below `blk.N.`; None if it has none."""
        if found := self.whole.get(inner):
            return found
        name, _, kind = inner.rpartition(".")
        if kind in ("weight", "bias") and (found := self.stems.get(name)):
            return f"{found}.{kind}"
        return find_mtp_family(self.architecture).stem(inner)
