"""The bundled model: a small hybrid with an MTP head, trained on Python's standard library.

Made by `python -m nextn.convert.nano`; `docs/nano.md` says what it is good for.
"""

from __future__ import annotations

from pathlib import Path


def path() -> Path:
    """Of the GGUF file, which is mapped: packages are installed unpacked."""
    return Path(__file__).resolve().with_name("nano.gguf")
