"""What the numbers of a head give away: NaN, norms that were shifted once too often or too seldom,
types that cost more than they give.

Only vectors and the blocks of the head are read. Where all tensors are wanted, `scan` reads them
before.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.gguf.printable import listing
from ...core.gguf.tensors import Tensor
from ..drafters import ARCHITECTURES as DRAFTERS
from ..files.gguf_facts import GgufFacts
from .head_rules import how_to_attach
from .scan import faults_of
from .verdict import FileReport, Subject

MAX_SCANNED: Final = 1 << 30  # bytes of a head: what is smallest first
_CHUNK: Final = 1 << 24
# Below four bits, what a head drafts is hardly ever right; a head as floats is slow to read.
_COARSE: Final = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "TQ1_0", "TQ2_0",
                  "Q2_K", "Q1_0", "Q2_0")  # fmt: skip
_FLOATS: Final = ("F32", "F16", "BF16", "F64")
_PLAIN: Final = ("F32", "F16", "BF16")


class _Norm(NamedTuple):
    name: str
    middle: float
    negative: float  # share of its entries


def check_numbers(facts: GgufFacts, report: FileReport, *, was_scanned: bool) -> None:
    """`was_scanned`: NaN and infinity were looked for in every tensor already."""
    _check_types(facts, report)
    if facts.has_numbers:
        if not was_scanned:
            _check_finite(facts, report)
        _check_decay(facts, report)
        _check_norms(facts, report)
        _check_copies(facts, report)


def _head_tensors(facts: GgufFacts) -> list[Tensor]:
    """All of a drafter's file."""
    if facts.architecture in DRAFTERS:
        return list(facts.file.tensors.values())
    prefixes = tuple(f"blk.{n}." for n in facts.marked)
    return [t for name, t in facts.file.tensors.items() if name.startswith(prefixes)]


def _check_types(facts: GgufFacts, report: FileReport) -> None:
    head = _head_tensors(facts)
    quantised = [t.name for t in facts.file.tensors.values() if _is_norm(t.name) and _is_odd(t)]
    if quantised:
        report.add(
            "norms-quantised",
            _part(facts) if set(quantised) <= {t.name for t in head} else Subject.MODEL,
            f"norms are quantised, which no reader expects: {listing(quantised)}",
        )
    matrices = [t for t in head if len(t.shape) > 1 and not _is_norm(t.name)]
    coarse = [f"{t.name} ({t.format.name})" for t in matrices if t.format.name in _COARSE]
    if coarse:
        report.add(
            "head-coarse",
            _part(facts),
            f"the {_noun(facts)} is stored too coarsely to guess well: {listing(coarse, 6)}",
            "" if facts.architecture in DRAFTERS else how_to_attach(facts) + " --type q8_0",
        )
    _check_cost(facts, matrices, report)


def _part(facts: GgufFacts) -> Subject:
    return Subject.DRAFTER if facts.architecture in DRAFTERS else Subject.HEAD


def _noun(facts: GgufFacts) -> str:
    return "drafter" if facts.architecture in DRAFTERS else "head"


def _is_odd(tensor: Tensor) -> bool:
    return tensor.format.name not in _PLAIN


def _is_norm(name: str) -> bool:
    return name.endswith(("norm.weight", "nextn.enorm.weight", "nextn.hnorm.weight"))


def _check_cost(facts: GgufFacts, matrices: list[Tensor], report: FileReport) -> None:
    """A head as floats beside a quantised trunk: each drafted token reads all of it."""
    wide = [t for t in matrices if t.format.name in _FLOATS and not t.name.endswith("inp.weight")]
    trunk = [t for t in facts.file.tensors.values() if t not in matrices and len(t.shape) > 1]
    rest, n = sum(t.n_bytes for t in trunk), sum(t.n_elements for t in trunk)
    n_bytes = sum(t.n_bytes for t in wide)
    if n and wide and 8 * rest / n < 10 and n_bytes > 0.02 * rest:
        kinds = "/".join(sorted({t.format.name for t in wide}))
        saved = n_bytes - sum(t.n_elements for t in wide) * 34 // 32
        report.add(
            "head-floats",
            Subject.HEAD,
            f"the head's matrices are {kinds} beside a quantised model: each drafted token reads "
            f"{n_bytes / 1e6:.0f} MB, of which Q8_0 would save {saved / 1e6:.0f}",
            how_to_attach(facts) + " --type q8_0",
        )


def _check_finite(facts: GgufFacts, report: FileReport) -> None:
    """Look for NaN in the head and in the model's vectors, the smallest tensors first."""
    head = _head_tensors(facts)
    vectors = [t for t in facts.file.tensors.values() if len(t.shape) == 1 and t not in head]
    left = MAX_SCANNED
    for part, tensors in ((_part(facts), head), (Subject.MODEL, vectors)):
        bad = []
        for tensor in sorted(tensors, key=lambda tensor: tensor.n_bytes):
            left -= tensor.n_bytes
            if left < 0:
                report.add(
                    "numbers-unread",
                    part,
                    f"a part of the {_noun(facts)} was not searched for NaN: it is very large",
                )
                break
            fault, _ = faults_of(tensor)
            tensor.release()
            if fault is not None:
                bad.append(f"{tensor.name} {fault.what}")
        if bad:
            fix = how_to_attach(facts) if part is Subject.HEAD else "convert it again"
            report.add("numbers", part, f"damaged numbers: {listing(bad)}", fix)


def _check_decay(facts: GgufFacts, report: FileReport) -> None:
    for name, tensor in facts.file.tensors.items():
        if name.endswith(".ssm_a") and tensor.format.name == "F32":
            values = tensor.floats()
            if np.isfinite(values).all() and (values > 0).any():
                text = f"{name} has a positive value: it is to hold -exp(A_log)"
                report.add("decay", Subject.MODEL, text, "convert the model again")


def _check_norms(facts: GgufFacts, report: FileReport) -> None:
    """Most weights of a norm are near those of its like in the trunk. Checkpoints of some families
    hold them less one: a converter that forgot to add it, or did it twice, is off by one here."""
    trunk = _norms(facts, facts.trunk_blocks)
    head = _norms(facts, facts.marked)
    usual = _middle([n for norms in trunk.values() for n in norms])
    if facts.family.shifted_norms:
        _check_trunk_norms(trunk, report)
    if usual is None:
        return
    low, high = [], []
    for stem, norms in head.items():
        like = _middle(trunk.get(stem, [])) or usual
        low += [norm for norm in norms if _lacks_one(norm, like)]
        # What only heads have may well be larger than anything in the trunk.
        high += [norm for norm in norms if stem in trunk and _has_two(norm, like)]
    if low and facts.family.shifted_norms:
        # Half of a norm below zero is no accident; a median alone may be.
        sure = any(norm.negative > 0.2 for norm in low)
        report.add(
            "head-norms" if sure else "head-norms-low",
            Subject.HEAD,
            "norms of the head are not shifted by one, as those of the model are (median "
            f"{usual.middle:.2f}): {_medians(low)}",
            how_to_attach(facts),
        )
    if len(high) > 1:
        report.add(
            "head-norms-high",
            Subject.HEAD,
            "norms of the head are larger by one than those of the model (median "
            f"{usual.middle:.2f}), as if shifted once too often: {_medians(high)}",
            how_to_attach(facts),
        )


def _medians(norms: list[_Norm]) -> str:
    return listing([f"{norm.name} (median {norm.middle:.2f})" for norm in norms])


def _check_trunk_norms(trunk: dict[str, list[_Norm]], report: FileReport) -> None:
    every = [norm for norms in trunk.values() for norm in norms]
    low = [norm for norm in every if norm.negative > 0.2 and abs(norm.middle) < 0.5]
    if every and len(low) > len(every) // 2:
        report.add(
            "norms",
            Subject.MODEL,
            f"the norms of the model are around {np.median([n.middle for n in low]):.2f}, with "
            f"negative ones: the converter forgot to add one to them: {_medians(low)}",
            "convert the model again",
        )


def _lacks_one(norm: _Norm, like: _Norm) -> bool:
    if norm.negative > 0.2 and like.negative < 0.05:
        return True
    return norm.middle < 0.3 and abs(like.middle - 1 - norm.middle) < abs(like.middle - norm.middle)


def _has_two(norm: _Norm, like: _Norm) -> bool:
    return norm.middle - like.middle > 0.75 and norm.negative == 0 and norm.middle < 4


def _middle(norms: list[_Norm]) -> _Norm | None:
    if not norms:
        return None
    middle = float(np.median([norm.middle for norm in norms]))
    return _Norm("", middle, float(np.median([norm.negative for norm in norms])))


def _norms(facts: GgufFacts, blocks: list[int]) -> dict[str, list[_Norm]]:
    """Norms by stem, without `ssm_norm`, which no family shifts."""
    found: dict[str, list[_Norm]] = {}
    for n in blocks:
        for stem in facts.blocks[n]:
            name = f"blk.{n}.{stem}.weight"
            tensor = facts.file.tensors.get(name)
            if tensor is None or not _is_norm(name) or stem == "ssm_norm" or _is_odd(tensor):
                continue
            found.setdefault(stem, []).append(_summary(name, tensor.floats()))
    return found


def _summary(name: str, values: NDArray[np.float32]) -> _Norm:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return _Norm(name, 1.0, 0.0)
    return _Norm(name, float(np.median(finite)), float(np.mean(finite < 0)))


def _check_copies(facts: GgufFacts, report: FileReport) -> None:
    """Heads may bring copies of the model's own matrices, which readers would share."""
    tensors = facts.file.tensors
    own = tensors.get("output.weight") or tensors.get("token_embd.weight")
    pairs = {"shared_head_head": own, "embed_tokens": tensors.get("token_embd.weight")}
    for stem, original in pairs.items():
        copies = [
            copy
            for n in facts.marked
            if (copy := tensors.get(f"blk.{n}.nextn.{stem}.weight")) and original
            if _is_copy(copy, original)
        ]
        if copies and original:
            size = sum(copy.n_bytes for copy in copies) / 1e6
            report.add(
                "head-copies",
                Subject.HEAD,
                f"nextn.{stem} is a copy of {original.name}: {size:.0f} MB that the head could "
                "share",
            )


def _is_copy(copy: Tensor, original: Tensor) -> bool:
    if (copy.format.name, copy.shape) != (original.format.name, original.shape):
        return False
    return all(
        np.array_equal(copy.data[at : at + _CHUNK], original.data[at : at + _CHUNK])
        for at in range(0, copy.n_bytes, _CHUNK)
    )
