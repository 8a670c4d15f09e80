"""Thirty pairs of a drafter and the bundled model: those that draft, those that fit and draft
badly, and those that do not fit, each with the number that decides."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support import dflash_files, eagle3_files
from support.dflash_files import write_dflash
from support.draft_dialects import Keys, int32s, rewrite
from support.eagle3_files import write_eagle3
from support.tiny_models import build_tiny

from nextn.convert.files.output_file import OutputFile
from nextn.convert.files.recombine import extract
from nextn.convert.verify import FileReport, examine_pair, open_anything
from nextn.core import nano
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Typed, ValueType
from nextn.core.load_runtime import load_runtime
from nextn.core.speculation.options import SpecOptions
from nextn.core.try_drafter import try_drafter

NANO = nano.path()
DATA = Path(__file__).parents[2] / "data"
EAGLE3, DFLASH = DATA / "nano-eagle3.gguf", DATA / "nano-dflash.gguf"
GOOD, BAD, MISFIT = "measured ", "drafts badly: measured 1.0", ""
Build = Callable[[Path], Path]


def shipped(path: Path) -> Build:
    return lambda _folder: path


def head_of(model: Build) -> Build:
    def build(folder: Path) -> Path:
        with open_gguf(model(folder)) as whole:
            extract(whole, OutputFile(folder / "head.gguf", False))
        return folder / "head.gguf"

    return build


def eagle3(target: Build | None = None, **kind: Any) -> Build:
    def build(folder: Path) -> Path:
        model = NANO if target is None else target(folder)
        return write_eagle3(folder / "e.gguf", model, eagle3_files.Kind(**kind)).path

    return build


def dflash(target: Build | None = None, **kind: Any) -> Build:
    def build(folder: Path) -> Path:
        model = NANO if target is None else target(folder)
        return write_dflash(folder / "d.gguf", model, dflash_files.Kind(**kind)).path

    return build


def tiny(family: str, **how: Any) -> Build:
    return lambda folder: build_tiny(family, folder, **how).path


def changed(source: Path, rename: Callable[[str], str] = str, **keys: Any) -> Build:
    """A shipped file with keys of its architecture changed."""

    def edit(found: Keys) -> Keys:
        arch = str(found["general.architecture"].value)
        return found | {f"{arch}.{name.replace('__', '.')}": each for name, each in keys.items()}

    return lambda folder: rewrite(source, folder / "changed.gguf", edit, rename)


def retokenised(source: Path) -> Build:
    def edit(keys: Keys) -> Keys:
        entry: Typed = keys["tokenizer.ggml.tokens"]
        tokens = list(entry.value)
        tokens[300], tokens[301] = tokens[301], tokens[300]
        return keys | {"tokenizer.ggml.tokens": replace(entry, value=tokens)}

    return lambda folder: rewrite(source, folder / "tokens.gguf", edit, str)


def exchanged(first: str, second: str) -> Callable[[str], str]:
    names = {f"{first}.weight": f"{second}.weight", f"{second}.weight": f"{first}.weight"}
    return lambda name: names.get(name, name)


def number(n: int) -> Typed:
    return Typed(ValueType.U32, n)


# Each with what the verdict says: of those that do not fit, why.
PAIRS: dict[str, tuple[Build, str, str]] = {
    "its EAGLE3": (shipped(EAGLE3), GOOD, "2."),
    "its DSpark": (shipped(DFLASH), GOOD, "2."),
    "its draft model": (shipped(DATA / "nano-draft.gguf"), GOOD, "1.3"),
    "its own head": (head_of(shipped(NANO)), GOOD, "2."),
    "its EAGLE3, with keys for values": (
        changed(EAGLE3, exchanged("blk.0.attn_k", "blk.0.attn_v")), BAD, ""
    ),
    "a random EAGLE3": (eagle3(), BAD, ""),
    "a random one with a whole head": (eagle3(n_head=0), BAD, ""),
    "a random EAGLE-3.1": (eagle3(fc_norm=True, norm_output=True), BAD, ""),
    "a random one of two layers": (eagle3(n_layers=2), BAD, ""),
    "a random one of latents": (eagle3(is_latent=True), BAD, ""),
    "a random narrow one": (eagle3(width=64, own_embedding=True), BAD, ""),
    "a random DFlash": (dflash(), BAD, ""),
    "a random DSpark": (dflash(markov=True, confidence=True), BAD, ""),
    "a random DFlash2": (dflash(kernel=3, top_k=4), BAD, ""),
    "an EAGLE3 of a narrower model": (
        eagle3(tiny("qwen3")), MISFIT, "it reads rows of 64, the model has rows of 256"
    ),
    "a DFlash of a narrower model": (
        dflash(tiny("qwen3")), MISFIT, "it reads rows of 64, the model has rows of 256"
    ),
    "an EAGLE3 of a deeper model": (
        changed(EAGLE3, target_layers=int32s([2, 16, 29])), MISFIT, "2, 16, 29, the model has 6"
    ),
    "a DSpark of a deeper model": (
        changed(DFLASH, target_layers=int32s([2, 4, 12])), MISFIT, "2, 4, 12, the model has 6"
    ),
    "an EAGLE3 of other tokens": (retokenised(EAGLE3), MISFIT, "another model: its token 300 is"),
    "a DSpark of other tokens": (retokenised(DFLASH), MISFIT, "another model: its token 300 is"),
    "an EAGLE3 of wider heads": (
        changed(EAGLE3, attention__key_length=number(128)), MISFIT, "blk.0.attn_q.weight"
    ),
    "an EAGLE3 of more layers": (changed(EAGLE3, block_count=number(2)), MISFIT, "blk.1."),
    "an EAGLE3 without a matrix": (
        changed(EAGLE3, lambda name: name.replace("ffn_up", "other")), MISFIT, "ffn_up.weight"
    ),
    "an EAGLE3 without its layers": (
        changed(EAGLE3, target_layers=int32s([])), MISFIT, "eagle3.target_layers"
    ),
    "a DSpark without a matrix": (
        changed(DFLASH, lambda name: name.replace("markov_w2", "other")), MISFIT, "markov_w2.weight"
    ),
    "a DSpark whose block is too long": (
        changed(DFLASH, block_size=number(1 << 20)), MISFIT, "block_size"
    ),
    "a DSpark of a narrower target": (
        dflash(shipped(DATA / "nano-draft.gguf")), MISFIT, "rows of 128, the model has rows of 256"
    ),
    "a head of a narrower model": (
        head_of(tiny("qwen35", mtp=True)), MISFIT, "embedding_length is 64, the model's 256"
    ),
    "a head of another family": (
        head_of(tiny("qwen35moe", mtp=True)), MISFIT, "a head of qwen35moe, the model is qwen35"
    ),
    "another dense model's drafter": (
        eagle3(shipped(DATA / "nano-draft.gguf")), MISFIT, "rows of 128, the model has rows of 256"
    ),
}  # fmt: skip


def judge(draft: Path) -> FileReport:
    opened = open_anything(str(draft))
    report = examine_pair(opened, open_anything(str(NANO)))
    if not report.is_sound:
        return report
    with load_runtime(NANO, "cpu", n_ctx=256, draft=draft, spec=SpecOptions()) as runtime:
        (loaded,) = runtime.draft_files
        result = try_drafter(runtime, loaded.drafter)
    return examine_pair(opened, open_anything(str(NANO)), result)


def test_there_are_thirty() -> None:
    assert len(PAIRS) == 30


@pytest.mark.parametrize("name", PAIRS)
def test_the_verdict(name: str, tmp_path: Path) -> None:
    build, kind, number = PAIRS[name]
    report = judge(build(tmp_path))
    verdict = report.drafters[0]
    assert verdict.works == report.is_sound == (kind != MISFIT), report.broken
    said = verdict.text if verdict.works else " ".join(report.broken)
    assert kind + number in said
    assert ("badly" in said) == (kind == BAD)
