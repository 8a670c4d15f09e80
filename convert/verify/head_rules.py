"""Is the MTP head of a GGUF complete, and if there is none, was there one once?"""

from __future__ import annotations

from shlex import quote
from typing import Final

from ...core.gguf.printable import listing
from ...core.gguf.tensors import Tensor, without_ones
from ..files.gguf_facts import GgufFacts, ranges
from ..heads.mtp_family import NEXTN_STEMS
from .verdict import FileReport, Subject

CHECKPOINT: Final = "CHECKPOINT"  # in a command: what only the user knows
# Models of deepseek2 that have a head, by (trunk layers, experts).
_DEEPSEEK: Final = {(61, 256): "DeepSeek V3 and R1", (47, 64): "GLM-4.7-Flash"}


def check_head(facts: GgufFacts, report: FileReport) -> bool:
    """Whether the file holds a head; what is wrong with it goes into the report."""
    before = len(report.findings)
    for n in facts.head_blocks or facts.marked:
        if n in facts.marked or (n in facts.blocks and facts.n_nextn):
            _check_block(facts, n, report)
    if facts.marked:
        _check_shapes(facts, report)
        if len(report.findings) == before and facts.is_head_only:
            _check_whole_file(facts, report)
        return True
    if facts.n_nextn:
        _key_without_head(facts, report)
    return False


def how_to_attach(facts: GgufFacts) -> str:
    """A head from its checkpoint, in the place of what there is."""
    path, origin = facts.file.paths[0], facts.source or CHECKPOINT
    if facts.is_head_only:
        return f"spec convert attach MODEL.gguf --from {origin} -o MODEL-mtp.gguf"
    target = quote(str(path) if facts.has_numbers else path.name)
    out = quote(f"{path.stem.split('-00001-of-')[0]}-mtp.gguf")
    replace = " --replace" if facts.marked else ""
    return f"spec convert attach {target} --from {origin} -o {out}{replace}"


def was_dropped(facts: GgufFacts) -> str:
    """Why a head must have been there, or "" if nothing says so."""
    if facts.n_nextn:
        return "nextn_predict_layers says that there was one"
    if facts.family.always_has_head:
        return f"the checkpoints of {facts.architecture} come with one"
    n_experts = facts.whole("expert_count") or 0
    known = _DEEPSEEK.get((len(facts.trunk_blocks), n_experts))
    if facts.architecture == "deepseek2" and known:
        return f"{known} come with one"
    return ""


def _check_block(facts: GgufFacts, n: int, report: FileReport) -> None:
    stems = facts.blocks.get(n, set())
    missing = facts.family.missing(stems)
    missing += [stem for stem in _in_all_attention(facts) if stem not in {*stems, *missing}]
    if n not in facts.marked and set(NEXTN_STEMS) <= set(missing):
        return  # no head at all: `_key_without_head`
    if missing:
        names = [f"blk.{n}.{stem}{'' if stem.endswith('.bias') else '.weight'}" for stem in missing]
        noun = "a tensor is" if len(names) == 1 else f"{len(names)} tensors are"
        report.add(
            "head-incomplete",
            Subject.HEAD,
            f"the MTP head is incomplete: {noun} missing: {listing(names)}",
            how_to_attach(facts),
        )
    if "ssm_conv1d" in stems:
        text = f"blk.{n} is recurrent (ssm_conv1d), which no MTP block is"
        report.add("head-kind", Subject.HEAD, text)


def _in_all_attention(facts: GgufFacts) -> list[str]:
    """Biases that every attention layer of the trunk has: then the head has them as well."""
    layers = [facts.blocks[n] for n in facts.trunk_blocks if "attn_output" in facts.blocks[n]]
    if not layers:
        return []
    common = set.intersection(*layers)
    biases = {"attn_q.bias", "attn_k.bias", "attn_v.bias", "attn_qkv.bias"}
    norms = {"attn_q_norm", "attn_k_norm"}
    return sorted(common & (biases | norms))


def _check_shapes(facts: GgufFacts, report: FileReport) -> None:
    width = facts.whole("embedding_length", low=1)
    tensors = facts.file.tensors
    rows = next(
        (tensors[n].shape[0] for n in ("token_embd.weight", "output.weight") if n in tensors), None
    )
    for n in facts.marked:
        for stem in sorted(facts.blocks[n]):
            tensor = tensors.get(f"blk.{n}.{stem}.weight")
            expected = None if tensor is None else _expected(facts, stem, width, rows)
            if tensor is not None and expected and without_ones(tensor.shape) not in expected:
                wanted = " or ".join(str(shape) for shape in sorted(expected))
                report.add(
                    "head-shape",
                    Subject.HEAD,
                    f"{tensor.name} has shape {tensor.shape}, expected {wanted}: it is the head of "
                    "another model, or was written the wrong way round",
                    how_to_attach(facts),
                )


def _expected(
    facts: GgufFacts, stem: str, width: int | None, rows: int | None
) -> set[tuple[int, ...]]:
    if width is None:
        return set()
    match stem:
        case "nextn.eh_proj":
            return {(width, 2 * width)}
        case "nextn.enorm" | "nextn.hnorm" | "nextn.shared_head_norm" | "layer_output_norm":
            return {(width,)}
        case "nextn.embed_tokens" | "nextn.shared_head_head":
            return {(rows, width)} if rows else set()
    return {without_ones(t.shape) for t in _of_trunk(facts, stem)} - {()}


def _of_trunk(facts: GgufFacts, stem: str) -> list[Tensor]:
    """The same tensor of the layers, where all of them that have it agree."""
    names = [f"blk.{n}.{stem}.weight" for n in facts.trunk_blocks if stem in facts.blocks[n]]
    found = [facts.file.tensors[name] for name in names if name in facts.file.tensors]
    # Dense layers of a MoE and windowed layers have sizes of their own, and so may the head.
    is_free = stem.startswith("ffn_") and not stem.endswith(("_exps", "_shexp", "gate_inp"))
    return [] if is_free else found


def _check_whole_file(facts: GgufFacts, report: FileReport) -> None:
    """Readers differ in what else an MTP-only file has to bring along."""
    lacks = [n for n in ("token_embd.weight", "output_norm.weight") if not facts.has(n)]
    if "tokenizer.ggml.tokens" not in facts.file.metadata:
        lacks.append("the tokenizer")
    if lacks:
        report.add(
            "llama-key",
            Subject.LLAMA_CPP,
            f"{listing(lacks)} missing: spec borrows these from the model, llama.cpp needs them",
            f"spec convert extract MODEL.gguf -o {quote(facts.file.paths[0].name)}",
        )


def _key_without_head(facts: GgufFacts, report: FileReport) -> None:
    where = f"blk.{ranges(facts.head_blocks)}" if facts.head_blocks else "its block"
    text = (
        f"nextn_predict_layers is {facts.n_nextn}, but the head was dropped: {where} has no "
        "nextn tensors"
    )
    fix = how_to_attach(facts)
    if facts.family.bare_key_loads and facts.family.architecture:
        report.add("head-dropped", Subject.HEAD, text, fix)
    else:
        text += "; llama.cpp refuses it, or aborts when it drafts"
        report.add("head-key", Subject.HEAD, text, fix)
