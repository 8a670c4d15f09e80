"""The models of a folder, as `--models-dir` names them: files, and folders with one model each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ...errors import ConfigError
from ...gguf.folder_files import gguf_files, listing, peek_architecture
from ...gguf.printable import printable_path
from ...models.drafters import NETWORKS
from ...models.drafters.foreign_names import is_draft_dialect
from ...vision.tower_sizes import ARCHITECTURE as TOWER

_PART: Final = re.compile(r"(.*)-(\d{5})-of-\d{5}", re.DOTALL)  # of a model in several files
_NO_MODEL: Final = ("mmproj", "imatrix")  # how names of other files begin


def find_models(folder: Path) -> dict[str, Path]:
    """Returns the files by the models' names: `X.gguf` is X, one model in the folder D is D, and
    each of several there is D/X. A broken file has its place, too: loading it says why."""
    if not folder.is_dir():
        raise ConfigError(f"--models-dir: there is no folder {printable_path(folder)}")
    found = _models_in(folder)
    for each in listing(folder):
        if each.is_dir():
            inside = _models_in(each)
            if len(inside) == 1:
                found.setdefault(each.name, *inside.values())
            else:
                for name, path in inside.items():
                    found.setdefault(f"{each.name}/{name}", path)
    return found


def n_bytes_of(model: Path) -> int:
    """Returns the size of a model's files; 0 if there are none."""
    part = _PART.fullmatch(model.stem)
    paths = [model] if part is None else model.parent.glob(f"{part[1]}-*-of-*.gguf")
    return sum(path.stat().st_size for path in paths if path.is_file())


def _models_in(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in gguf_files(folder):
        part = _PART.fullmatch(path.stem)
        if (part is None or int(part[2]) == 1) and _may_be_model(path):
            found[path.stem if part is None else part[1]] = path
    return found


def _may_be_model(path: Path) -> bool:
    """Neither a drafter nor a vision tower, which belong to the models beside them."""
    if path.name.lower().startswith(_NO_MODEL) or not path.is_file():
        return False
    architecture = peek_architecture(path)
    is_drafter = architecture in NETWORKS or is_draft_dialect(architecture)
    return architecture != TOWER and not is_drafter
