"""Which type each tensor becomes, decided before anything is written."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

from msgspec import Struct

from ...core.errors import ConfigError
from ...core.gguf.metadata import Metadata
from ...core.gguf.printable import printable
from ...core.gguf.quants import BlockFormat, find_format
from ...core.gguf.tensors import Tensor
from .imatrix import Importance
from .model_facts import (
    EMBEDDING,
    FLOATS,
    OUTPUT,
    ModelFacts,
    in_llama_order,
    kind_of,
    layer_of,
    may_be_quantised,
)
from .recipes import Mixture, QuantizeRecipe
from .type_rules import HEAD, KEEP, TypeRule

# What an MTP head gets at least: each draft token that it guesses wrong costs more than its bytes.
HEAD_TYPE = "Q6_K"
RAISED = "MTP head"
# So few bits are worth nothing where all columns count alike; llama-quantize refuses them too.
NEED_IMPORTANCE = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS"})
# Where rows are not whole blocks: the nearest type with small blocks, as llama.cpp has it.
FALLBACKS = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "TQ1_0": "Q4_0", "TQ2_0": "Q4_0", "IQ1_S": "IQ4_NL", "IQ1_M": "IQ4_NL", "IQ2_XXS": "IQ4_NL",
    "IQ2_XS": "IQ4_NL", "IQ2_S": "IQ4_NL", "IQ3_XXS": "IQ4_NL", "IQ3_S": "IQ4_NL",
    "IQ4_XS": "IQ4_NL",
}  # fmt: skip


class QuantizeOptions(Struct, frozen=True):
    recipe: QuantizeRecipe | None  # None copies
    rules: tuple[TypeRule, ...] = ()
    output_type: str | None = None
    embedding_type: str | None = None
    leaves_output: bool = False
    is_pure: bool = False
    importance: Importance | None = None
    allows_requantising: bool = False
    keeps_heads: bool = True  # at HEAD_TYPE or better; else they are as llama-quantize has them


class PlanItem(Struct, frozen=True):
    tensor: Tensor
    format: BlockFormat
    why: str = ""
    is_fallback: bool = False

    @property
    def is_copy(self) -> bool:
        return self.format.name == self.tensor.format.name

    @property
    def is_requantised(self) -> bool:
        """Whether it goes from one quantised type to another."""
        return not (self.is_copy or self.tensor.format.name in FLOATS or self.format.name in FLOATS)

    @property
    def n_bytes(self) -> int:
        return self.format.n_bytes(self.tensor.n_elements)


class QuantizePlan(Struct, frozen=True):
    items: tuple[PlanItem, ...]  # in the order of the source
    options: QuantizeOptions
    heads: frozenset[int] = frozenset()  # blocks of MTP heads
    unused_rules: tuple[str, ...] = ()

    @property
    def n_bytes(self) -> int:
        return sum(item.n_bytes for item in self.items)

    @property
    def n_elements(self) -> int:
        return sum(item.tensor.n_elements for item in self.items)

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.n_bytes / max(1, self.n_elements)

    @property
    def head_types(self) -> dict[str, int]:
        """Matrices of MTP heads by the type that they get, the most frequent first."""
        found = Counter(
            item.format.name
            for item in self.items
            if layer_of(item.tensor.name) in self.heads
            if may_be_quantised(item.tensor.name, item.tensor.shape)
        )
        return dict(found.most_common())

    @property
    def head_remark(self) -> str:
        """What MTP heads get, in words; "" where nothing is decided about one."""
        recipe = self.options.recipe
        if not self.head_types or recipe is None or recipe.base in FLOATS:
            return ""
        kinds = ", ".join(f"{n} {name}" for name, n in self.head_types.items())
        why = f"; {HEAD_TYPE} at least, unless --tensor-type {HEAD}=TYPE says otherwise"
        return f"MTP head: matrices are {kinds}{why if self.raises_heads else ''}"

    @property
    def raises_heads(self) -> bool:
        """Whether the mixture would have made matrices of MTP heads coarser."""
        return any(item.why == RAISED for item in self.items)

    @property
    def formats(self) -> list[str]:
        """The types that tensors are converted to."""
        return sorted({item.format.name for item in self.items if not item.is_copy})

    def without_importance(self) -> list[str]:
        """Names of quantised tensors that the importance matrix does not know."""
        importance = self.options.importance
        if importance is None:
            return []
        quantised = [i for i in self.items if not i.is_copy and i.format.name not in FLOATS]
        tensors = [item.tensor for item in quantised]
        return [t.name for t in tensors if importance.of(t.name, t.shape) is None]


class TensorsWithMetadata(Protocol):
    """A file, or what will be one."""

    @property
    def metadata(self) -> Metadata: ...

    @property
    def tensors(self) -> dict[str, Tensor]: ...


def make_plan(source: TensorsWithMetadata, options: QuantizeOptions) -> QuantizePlan:
    """Only names and shapes are read."""
    chooser = _TypeChooser(source, options)
    chosen = {name: chooser.item(name) for name in in_llama_order(source.tensors)}
    items = tuple(chosen[name] for name in source.tensors)
    unused = tuple(rule.text for rule in chooser.unused)
    return QuantizePlan(items, options, chooser.facts.heads, unused)


class _TypeChooser:
    def __init__(self, source: TensorsWithMetadata, options: QuantizeOptions) -> None:
        self.source, self.options = source, options
        names = list(source.tensors)
        self.facts = ModelFacts.of(source.metadata, names)
        self.unused = dict.fromkeys(options.rules)
        self.mixture = None
        if options.recipe is not None:
            self.mixture = Mixture(
                options.recipe,
                self.facts,
                has_importance=options.importance is not None,
                is_tied="output.weight" not in source.tensors,
                n_attention=sum(kind_of(name) == "attn_v" for name in names),
                output_type=options.output_type,
            )

    def item(self, name: str) -> PlanItem:
        tensor = self.source.tensors[name]
        if tensor.format.block_size == 1 and tensor.format.name not in FLOATS:
            return PlanItem(tensor, tensor.format, "integers")
        if not may_be_quantised(name, tensor.shape):
            return PlanItem(tensor, tensor.format, "never quantised")
        wanted, why = self._wanted(tensor)
        if wanted is None:
            return PlanItem(tensor, tensor.format, why)
        fmt, remark = fitting(tensor.shape[-1], find_format(wanted))
        return PlanItem(tensor, fmt, remark or why, is_fallback=bool(remark))

    def _wanted(self, tensor: Tensor) -> tuple[str | None, str]:
        options, name, kind = self.options, tensor.name, kind_of(tensor.name)
        rule = next((r for r in options.rules if self._fits(r, name)), None)
        if rule is not None:
            self.unused.pop(rule, None)
        if kind == OUTPUT and options.leaves_output:
            return None, "--leave-output-tensor"
        if kind == EMBEDDING and options.embedding_type:
            return options.embedding_type, "--token-embedding-type"
        if kind == OUTPUT and options.output_type:
            return options.output_type, "--output-tensor-type"
        if rule is not None:
            return (None if rule.type == KEEP else rule.type), f"rule {printable(rule.text)}"
        if self.mixture is None or options.recipe is None:
            return None, "copied"
        base = find_format(options.recipe.base)
        if options.is_pure or base.name in FLOATS:
            return base.name, ""
        chosen = self.mixture.type_of(name, tensor.shape, base.block_size)
        is_head = options.keeps_heads and layer_of(name) in self.facts.heads
        if not is_head or _bits(find_format(chosen)) >= _HEAD_BITS:
            return chosen, ""
        if tensor.format.name not in FLOATS and _bits(tensor.format) < _HEAD_BITS:
            return None, "coarse already"
        return HEAD_TYPE, RAISED

    def _fits(self, rule: TypeRule, name: str) -> bool:
        return rule.fits(name, self.facts.n_layers, self.facts.heads)


def _bits(form: BlockFormat) -> float:
    return 8 * form.block_bytes / form.block_size


_HEAD_BITS = _bits(find_format(HEAD_TYPE))


def fitting(row: int, wanted: BlockFormat) -> tuple[BlockFormat, str]:
    """The type itself or its fallback for rows that it cannot hold, and a remark in that case."""
    if row % wanted.block_size == 0:
        return wanted, ""
    instead = find_format(FALLBACKS.get(wanted.name, "F16"))
    if row % instead.block_size:
        instead = find_format("F16")
    remark = f"rows of {row} are no multiple of {wanted.block_size}: {wanted.name} cannot hold them"
    return instead, remark


def check_plan(plan: QuantizePlan) -> None:
    """Raises ConfigError if the plan quantises twice, or lacks the importance that it needs."""
    found = [item for item in plan.items if item.is_requantised]
    if found and not plan.options.allows_requantising:
        first = found[0]
        raise ConfigError(
            f"{printable(first.tensor.name)} is {first.tensor.format.name} already and would "
            f"become {first.format.name}, one of {len(found)}: quantising twice costs quality; "
            "start from an F16 or BF16 file, or say --allow-requantize"
        )
    missing = set(plan.without_importance())  # raises where sizes do not fit
    recipe = plan.options.recipe
    is_smallest = recipe is not None and recipe.name == "Q2_K_S"
    needing = NEED_IMPORTANCE | {"Q2_K"} if is_smallest else NEED_IMPORTANCE
    for item in plan.items:
        name = item.tensor.name
        is_known = plan.options.importance is not None and name not in missing
        if item.is_copy or item.format.name not in needing or kind_of(name) in (OUTPUT, EMBEDDING):
            continue
        if not is_known:
            given = "" if recipe is None else f"--type {recipe.name}: "
            raise ConfigError(
                f"{given}{item.format.name} needs an importance matrix that knows "
                f"{printable(name)}: give --imatrix FILE (spec convert imatrix makes one), or "
                "another type; Q2_K and IQ3_S do without"
            )
