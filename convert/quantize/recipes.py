"""The mixtures of llama-quantize: which type each tensor of a file gets.

The rules are llama.cpp's (src/llama-quant.cpp, 2026). With tied embeddings the token table counts
as the output matrix. Layers are counted with the MTP blocks. Tensors of kind `attn_v` are counted
in the order of the names within each layer; a tensor that a rule decides is not counted.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, field

from ...core.errors import ConfigError
from .model_facts import EMBEDDING, OUTPUT, ModelFacts, Shape, kind_of, layer_of


class QuantizeRecipe(Struct, frozen=True):
    name: str
    file_type: int  # llama.cpp's number for general.file_type
    base: str  # the type of every tensor without a rule of its own


RECIPES: dict[str, QuantizeRecipe] = {
    name: QuantizeRecipe(name, file_type, base)
    for name, file_type, base in (
        ("Q4_0", 2, "Q4_0"), ("Q4_1", 3, "Q4_1"), ("Q5_0", 8, "Q5_0"), ("Q5_1", 9, "Q5_1"),
        ("Q8_0", 7, "Q8_0"), ("Q2_K", 10, "Q2_K"), ("Q2_K_S", 21, "Q2_K"), ("Q3_K_S", 11, "Q3_K"),
        ("Q3_K_M", 12, "Q3_K"), ("Q3_K_L", 13, "Q3_K"), ("Q4_K_S", 14, "Q4_K"),
        ("Q4_K_M", 15, "Q4_K"), ("Q5_K_S", 16, "Q5_K"), ("Q5_K_M", 17, "Q5_K"),
        ("Q6_K", 18, "Q6_K"), ("IQ4_NL", 25, "IQ4_NL"), ("IQ4_XS", 30, "IQ4_XS"),
        ("IQ1_S", 24, "IQ1_S"), ("IQ1_M", 31, "IQ1_M"), ("IQ2_XXS", 19, "IQ2_XXS"),
        ("IQ2_XS", 20, "IQ2_XS"), ("IQ2_S", 28, "IQ2_XS"), ("IQ2_M", 29, "IQ2_S"),
        ("IQ3_XXS", 23, "IQ3_XXS"), ("IQ3_XS", 22, "IQ3_S"), ("IQ3_S", 26, "IQ3_S"),
        ("IQ3_M", 27, "IQ3_S"), ("TQ1_0", 36, "TQ1_0"), ("TQ2_0", 37, "TQ2_0"),
        ("MXFP4_MOE", 38, "MXFP4"), ("F16", 1, "F16"), ("BF16", 32, "BF16"), ("F32", 0, "F32"),
    )
}  # fmt: skip
ALIASES = {"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M"}
COPY = "COPY"  # every tensor stays as it is, but for the rules


def find_recipe(name: str) -> QuantizeRecipe | None:
    """None for COPY."""
    wanted = ALIASES.get(name.upper(), name.upper())
    if wanted == COPY:
        return None
    if wanted not in RECIPES:
        if wanted in ("Q1_0", "Q2_0", "NVFP4"):
            raise ConfigError(
                f"--type {name} has no quantiser here: models are trained for it; types of so few "
                "bits that have one are IQ1_S, IQ2_XXS and TQ2_0"
            )
        known = ", ".join([*RECIPES, COPY])
        raise ConfigError(f"--type {name} is not known; choose one of {known}")
    return RECIPES[wanted]


def is_recipe(name: str) -> bool:
    wanted = name.upper()
    return wanted in RECIPES or wanted in ALIASES or wanted == COPY


class Mixture(Struct):
    """Decides the types of a file's tensors in llama.cpp's order, with its counts."""

    recipe: QuantizeRecipe
    facts: ModelFacts
    has_importance: bool
    is_tied: bool
    n_attention: int
    output_type: str | None = None
    seen: dict[str, int] = field(default_factory=dict)

    def type_of(self, name: str, shape: Shape, block_size: int) -> str:
        """`block_size` is that of the recipe's base type."""
        kind = kind_of(name)
        if kind == OUTPUT or (self.is_tied and kind == EMBEDDING):
            return self._output(shape, block_size)
        if self.recipe.name == "MXFP4_MOE":
            # Experts have a third dimension.
            return "MXFP4" if len(shape) > 2 and shape[-3] > 1 else "Q8_0"
        number = self.seen.get(kind, 0)
        self.seen[kind] = number + 1
        if self.recipe.name in _OF_TWO_BITS:
            return _of_two_bits(self, kind, number) or self.recipe.base
        choose = _CHOICES.get(kind)
        if choose is None:
            return self.recipe.base
        layer = layer_of(name)
        if self.facts.n_experts > 1 and kind in _BY_LAYER and layer is not None:
            number = layer  # layers with experts need not follow one another
        return choose(self, number) or self.recipe.base

    def _output(self, shape: Shape, block_size: int) -> str:
        if self.output_type is not None:
            return self.output_type
        is_q8 = self.recipe.name == "MXFP4_MOE" or self.recipe.base == "Q8_0"
        is_q8 |= self.facts.architecture == "falcon" or shape[-1] % block_size != 0
        if is_q8:
            return "Q8_0"
        return "Q5_K" if self.recipe.name in (*_OF_TWO_BITS, "IQ3_XXS") else "Q6_K"

    def gets_more(self, layer: int, n_layers: int) -> bool:
        """The first and the last eighth, and every third layer between them."""
        eighth = n_layers // 8
        return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


_OF_TWO_BITS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
_BY_LAYER = ("ffn_down", "ffn_gate", "ffn_up")


def _of_two_bits(mixture: Mixture, kind: str, number: int) -> str | None:
    """Rules of these recipes alone."""
    name, facts = mixture.recipe.name, mixture.facts
    is_larger = name in ("IQ2_S", "IQ2_M")
    raised = "IQ3_S" if is_larger else "Q2_K"
    match kind:
        case "token_embd":
            return raised
        case "attn_v":
            return "Q4_K" if facts.n_gqa >= 4 or facts.n_experts >= 4 else raised
        case "attn_k" if facts.n_experts == 8:
            return "Q4_K"
        case "ffn_down":
            return raised if number < facts.n_layers // 8 else None
        case "attn_output" if facts.n_experts == 8:
            return "Q5_K"
        case "attn_output":
            return "IQ3_S" if is_larger else "IQ2_XXS" if name.startswith("IQ1") else None
    return None


def _attn_v(mixture: Mixture, number: int) -> str | None:
    facts, name = mixture.facts, mixture.recipe.name
    if facts.n_experts == 8:
        return "Q8_0"
    chosen = _attn_v_of_recipe(mixture, name, number)
    if facts.is_70b and (chosen or mixture.recipe.base) in ("Q3_K", "Q4_K"):
        return "Q5_K"
    return chosen


def _attn_v_of_recipe(mixture: Mixture, name: str, number: int) -> str | None:
    is_shared = mixture.facts.n_gqa >= 4
    if name == "Q2_K":
        return "Q4_K" if is_shared else "Q3_K"
    if name == "Q2_K_S" and is_shared:
        return "Q4_K"
    if name == "IQ3_XXS":
        return "Q4_K" if is_shared else None if mixture.has_importance else "IQ3_S"
    if name == "IQ3_M" or (name in ("IQ3_XS", "IQ3_S") and is_shared):
        return "Q4_K"
    if name == "Q3_K_M":
        return "Q5_K" if number < 2 else "Q4_K"
    if name == "Q3_K_L" or (name in ("IQ4_NL", "IQ4_XS") and is_shared):
        return "Q5_K"
    if name in ("Q4_K_M", "Q5_K_M") and mixture.gets_more(number, mixture.n_attention):
        return "Q6_K"
    return "Q5_K" if name == "Q4_K_S" and number < 4 else None


def _attn_output(mixture: Mixture, _: int) -> str | None:
    name = mixture.recipe.name
    if mixture.facts.architecture == "falcon":
        return "Q4_K" if name == "Q3_K_L" else None
    if mixture.facts.n_experts == 8:
        raised = ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ4_XS", "IQ3_XS",
                  "IQ3_XXS", "IQ3_S", "IQ3_M")  # fmt: skip
        return "Q5_K" if name in raised else None
    return {
        "Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"
    }.get(name)  # fmt: skip


def _ffn_down(mixture: Mixture, layer: int) -> str | None:
    name, n_layers = mixture.recipe.name, mixture.facts.n_layers
    if mixture.facts.architecture == "falcon" and name in _FALCON_DOWN:
        first, some, others = _FALCON_DOWN[name]
        if layer < n_layers // 16:
            return first
        return some if mixture.gets_more(layer, n_layers) else others
    if name == "Q3_K_M":
        return "Q5_K" if layer < n_layers // 16 else "Q4_K"
    if name in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if mixture.gets_more(layer, n_layers) else None
    if name == "IQ3_XXS" and not mixture.has_importance:
        return "Q4_K" if layer < n_layers // 8 else "Q3_K"
    if name == "IQ3_M":
        is_more = mixture.facts.n_experts == 8 and mixture.gets_more(layer, n_layers)
        return "Q4_K" if layer < n_layers // 8 or is_more else None
    if name in ("Q2_K", "Q3_K_L"):
        return {"Q2_K": "Q3_K", "Q3_K_L": "Q5_K"}[name]
    if layer >= n_layers // 8:
        return None
    if name in ("IQ4_NL", "IQ4_XS"):
        return None if mixture.has_importance else "Q5_K"
    if name in ("Q4_0", "Q5_0"):
        return {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}[name] if mixture.has_importance else None
    return {"Q2_K_S": "Q4_K", "Q4_K_S": "Q5_K"}.get(name)


def _in_the_middle(mixture: Mixture, layer: int) -> str | None:
    n_layers = mixture.facts.n_layers
    is_middle = n_layers // 8 <= layer < 7 * n_layers // 8
    return "IQ3_XXS" if mixture.recipe.name == "IQ3_XS" and is_middle else None


_NARROW_QUERIES = {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}
_TOKEN_TABLES = {"IQ3_XXS": "IQ3_S", "TQ1_0": "Q4_K", "TQ2_0": "Q4_K"}
# The first sixteenth of the layers, those that get more, and the others.
_FALCON_DOWN = {
    "Q3_K_M": ("Q5_K", "Q4_K", "Q3_K"),
    "Q3_K_L": ("Q4_K", "Q4_K", "Q4_K"),
    "Q4_K_M": ("Q6_K", "Q5_K", "Q4_K"),
    "Q4_K_S": (None, None, None),
}
_CHOICES: dict[str, Callable[[Mixture, int], str | None]] = {
    "attn_v": _attn_v,
    "token_embd": lambda mixture, _: _TOKEN_TABLES.get(mixture.recipe.name),
    "attn_k": lambda mixture, _: (
        "Q8_0" if mixture.facts.n_experts == 8 else _NARROW_QUERIES.get(mixture.recipe.name)
    ),
    "attn_q": lambda mixture, _: _NARROW_QUERIES.get(mixture.recipe.name),
    "ffn_gate": lambda mixture, layer: _in_the_middle(mixture, layer),
    "ffn_up": lambda mixture, layer: _in_the_middle(mixture, layer),
    "attn_output": _attn_output,
    "ffn_down": _ffn_down,
}
