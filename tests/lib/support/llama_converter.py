"""Runs llama.cpp's converter, from its sources: SOURCES FOLDER OUT [TARGET], which is the folder of
the model that a drafter drafts for.

config.json is read as it is, where the converter has `transformers` read it, which drops keys of
the hub; and vocabularies of toys, which it does not know, are left out.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

# Classes of drafters, which have the vocabulary of their target and a key of their own beside it.
BORROWING = ("DFlashModel", "DSparkModel", "Gemma4DSparkModel", "MuseGlimmerAssistantModel")


def main(sources: str, folder: str, out: str, *target: str) -> None:
    sys.path[:0] = [sources, f"{sources}/gguf-py"]
    conversion = import_module("conversion")
    base: Any = import_module("conversion.base")
    conversion.load_all_models()
    base.ModelBase.load_hparams = staticmethod(_read_config)
    for model in (base.TextModel, *_below(base.TextModel)):
        if model.__name__ not in BORROWING:
            model.set_vocab = _no_vocabulary
    sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", out, "--outtype", "f32"]
    sys.argv += ["--target-model-dir", *target] if target else []
    runpy.run_path(f"{sources}/convert_hf_to_gguf.py", run_name="__main__")


def _read_config(folder: Path, is_mistral_format: bool = False) -> Any:
    return json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))


def _below(kind: Any) -> Iterator[Any]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


def _no_vocabulary(model: Any) -> None:
    model.gguf_writer.add_tokenizer_model("none")


if __name__ == "__main__":
    main(*sys.argv[1:])
