"""The bundled model: a small hybrid with an MTP head, trained on Python's standard library.

`docs/nano.md` says what it is good for and how it was made.
"""

from __future__ import annotations

from pathlib import Path


def path() -> Path:
    """Of the GGUF file, which is mapped: packages are installed unpacked."""
    return Path(__file__).resolve().with_name("nano.gguf")
