"""docs/models.md from the tables of the code and of its tests:
`PYTHONPATH=tests/lib python -m support.models_page > docs/models.md`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nextn.cli.console import print_page
from nextn.convert.heads.family_table import find_mtp_family
from nextn.convert.hf.families.checkpoint_rows import FAMILIES as CHECKPOINTS
from nextn.core.models import ARCHITECTURES
from nextn.core.models.drafters import NETWORKS
from nextn.core.speculation.options import DRAFTERS
from nextn.core.tokenizer.built_in_templates import BUILT_IN

from . import quantize_families, tiny_models
from .every_family import EVERY_FAMILY, EVERY_WITH_MTP
from .hub_case import HubCase
from .hub_checkpoints import CASES
from .model_notes import NOTES, ModelNote
from .plain_hub_cases import PLAIN_CASES, UNLIKE_LLAMA_CPP
from .state_hub_cases import WITH_CONVERTED_HEAD
from .tiny_gemma import GEMMAS, GemmaKind
from .tiny_heads import KINDS, HeadKind

HEAD = (
    "Generated from the tables of the code and of its tests by `tests/lib/support/models_page.py`; "
    "do not edit.",
    "A GGUF file of any architecture in the table runs on all devices and with all tensor types "
    "([README](../README.md#what-works)), but `nemotron_h_moe`, which is not on CUDA "
    "([recurrent.md](recurrent.md)). Text is read and written; images are "
    "read by those of Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen 3.5, Idefics3, SmolVLM, InternVL, "
    "Pixtral, Mistral Small 3, Ministral 3, Gemma 3 and Gemma 4 with their mmproj file "
    "(`--mmproj`), on the CPU and `torch`; of others that see images the text part runs. "
    "`spec convert inspect`, `attach`, `extract` and `quantize` work on other architectures as "
    "well ([convert.md](convert.md)).",
)
COLUMNS = (
    "*checkpoints*: `model_type`s in config.json that `spec convert hf` takes.",
    "*MTP*: heads of this architecture draft, in the model's file or beside it; *attach*: they are "
    "attached and kept, but that they draft is not tested. All architectures draft with {others} "
    "([speculation.md](speculation.md)).",
    "*templates*: names for `--chat-template`, where a file has no template of its own, or not the "
    "one that is wanted.",
    "*calls*, *thoughts*: the marks that begin them in a reply, by the template "
    "([server.md](server.md#thoughts-and-calls)). Where no marks of calls are given, the system "
    "message explains some.",
    "*checked*: a tiny random model of each row is part of the tests. T: its logits are those of "
    "`transformers` to 1e-4, for whole prompts and token by token. L: llama.cpp gives its tokens "
    "the same probabilities. C: a converted checkpoint has the tensors and keys that llama.cpp's "
    "converter writes. Q: mixtures have the types that llama-quantize chooses. In every row, "
    "speculation changes no text.",
)


def models_page() -> str:
    assert NOTES.keys() == ARCHITECTURES.keys()
    others = ", ".join(f"`{name}`" for name in DRAFTERS if name != "mtp")
    columns = "\n".join(item(text.format(others=others)) for text in COLUMNS)
    parts = ["# Models", *map(wrapped, HEAD), columns, "\n".join(rows())]
    parts += ["## Drafters in files of their own", drafters()]
    parts += ["## Names of templates", item(" ".join(f"`{name}`" for name in sorted(BUILT_IN)))]
    return "\n\n".join(parts) + "\n"


def rows() -> Iterator[str]:
    checked = Checked()
    names = "architecture", "models", "checkpoints", "MTP", "templates", "calls", "thoughts"
    yield line((*names, "checked"))
    yield line(["---"] * 8)
    for name in sorted(ARCHITECTURES):
        note = NOTES[name]
        yield line(
            (
                f"`{name}`",
                note.models,
                coded(kind for kind, row in CHECKPOINTS.items() if row.architecture == name),
                heads(name),
                coded(known_templates(note)),
                coded(dict.fromkeys(style.opening for style in note.calls)),
                coded(note.thoughts[:1] if note.thoughts else ()),
                checked.against(name),
            )
        )


def heads(architecture: str) -> str:
    if not find_mtp_family(architecture).architecture:
        return ""
    return "yes" if architecture in WITH_HEADS else "attach"


def of_families(names: Iterable[str]) -> set[str]:
    """Their architectures."""
    return {row.architecture for name in names for row in [find_row(name)]}


def find_row(name: str) -> tiny_models.Family | HeadKind | GemmaKind | HubCase:
    tables: tuple[Mapping[str, Any], ...] = tiny_models.FAMILIES, KINDS, GEMMAS, PLAIN_CASES
    found = next(table[name] for table in tables if name in table)
    assert isinstance(found, tiny_models.Family | HeadKind | GemmaKind | HubCase)
    return found


def known_templates(note: ModelNote) -> list[str]:
    names = note.templates.split()
    assert set(names) <= set(BUILT_IN)
    return names


WITH_HEADS = of_families((*EVERY_WITH_MTP, *WITH_CONVERTED_HEAD))


class Checked:
    """Architectures by what tests compare them with."""

    def __init__(self) -> None:
        plain = of_families(tiny_models.FAMILIES)
        quantised = (keys for keys, _ in quantize_families.FAMILIES.values())
        self._by_letter = {
            "T": of_families(EVERY_FAMILY),
            "L": of_families(name for name in EVERY_FAMILY if name not in UNLIKE_LLAMA_CPP),
            "C": plain | {case.architecture for case in CASES.values()},
            "Q": {str(keys["general.architecture"]) for keys in quantised},
        }

    def against(self, architecture: str) -> str:
        found = (letter for letter, known in self._by_letter.items() if architecture in known)
        return " ".join(found)


def drafters() -> str:
    return "\n".join(
        item(f"`{name}`, with `-md FILE`: for the model whose hidden rows it was made for.")
        for name in NETWORKS
    )


def item(text: str) -> str:
    return wrapped(f"- {text}", indent="  ")


def wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, 118, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def coded(texts: Iterable[str]) -> str:
    return " ".join(f"`{text}`".replace("|", "\\|") for text in texts)


if __name__ == "__main__":
    print_page(models_page())
