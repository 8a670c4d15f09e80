"""Where a report comes from: without that its figures mean nothing."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from ..runtime import Runtime
from .machine_noise import load_average

PACKAGES: Final = ("nextn", "numpy", "llvmlite", "tokenizers", "torch")
_CHUNK: Final = 1 << 22


def provenance(argv: Sequence[str], seed: int) -> dict[str, Any]:
    """Facts of any run. To be called before it: the load should be that of a quiet machine."""
    commit, dirty = _commit()
    return {
        "test_time": datetime.now(UTC).isoformat(timespec="seconds"),
        "build_commit": commit,
        "build_dirty": dirty,
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu_info": processor(),
        "cores": os.cpu_count(),
        "load_average_before": load_average(),
        "seed": seed,
        "argv": list(argv),
    }


def of_runtime(runtime: Runtime) -> dict[str, Any]:
    """Facts of a model in this process."""
    file = runtime.file
    formats = [tensor.format.name for tensor in file.tensors.values() if len(tensor.shape) > 1]
    common = max(set(formats), key=formats.count) if formats else ""
    found = {
        "model_filename": file.path.name,
        "model_name": runtime.name,
        "model_type": f"{runtime.architecture} {common}".strip(),
        "model_size": file.n_bytes,
        "model_n_params": file.n_params,
        "model_sha256": hash_files(file.paths),
        "device": runtime.device,
        "cpu_kernels": runtime.backend.details,
        "n_ctx": runtime.n_ctx,
    }
    if runtime.draft is not None:
        found["draft_filename"] = runtime.draft.file.path.name
        found["draft_sha256"] = hash_files(runtime.draft.file.paths)
    return found


def hash_files(paths: Sequence[Path]) -> str:
    """The hash of their contents, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while data := file.read(_CHUNK):
                digest.update(data)
    return digest.hexdigest()


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(": ")[2] for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.machine()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> tuple[str | None, bool | None]:
    """The commit of a working copy; an installed package has only its version."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None, None
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        dirty = bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return None, None
    return commit, dirty


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()
