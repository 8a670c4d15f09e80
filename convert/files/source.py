"""Opening what a head is taken from: a checkpoint, one file of it, or a GGUF."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...core.errors import FileFormatError
from ...core.gguf.reader import GgufFile, open_gguf
from ...core.gguf.shown import shown_path
from ..checkpoint import Checkpoint, open_checkpoint
from ..checkpoint.folder import Folder, read_json
from ..checkpoint.safetensors import read_tensors


@contextmanager
def open_source(text: str) -> Iterator[Checkpoint | GgufFile]:
    path = Path(text)
    with ExitStack() as stack:
        if path.is_dir():
            yield stack.enter_context(open_checkpoint(path))
        elif path.suffix == ".safetensors" and path.is_file():
            yield stack.enter_context(_open_one_file(path))
        elif path.exists():
            yield stack.enter_context(open_gguf(path))
        else:
            raise FileFormatError(
                f"{shown_path(path)}: no such file or folder (--from takes a checkpoint's folder, "
                f"one of its .safetensors files, or a GGUF)"
            )


def _open_one_file(path: Path) -> Checkpoint:
    """A head often lies in a file of its own, which the index does not list."""
    place = Folder(path.parent)
    config = read_json(place, "config.json")
    source = place.open(path.name)
    tensors, _ = read_tensors(source)
    return Checkpoint(shown_path(path), place, config, tensors, [source])
