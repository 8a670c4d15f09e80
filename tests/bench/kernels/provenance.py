"""Where GPU figures come from."""

from __future__ import annotations

import platform
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..provenance import git

PACKAGES = ("torch", "cupy-cuda13x", "cuda-bindings", "nvidia-cuda-nvrtc", "numpy")
ASKED = (
    *("name", "driver_version", "vbios_version", "memory.total", "power.limit"),
    *("clocks.sm", "clocks.mem", "clocks.max.sm", "clocks.max.mem"),
    *("temperature.gpu", "ecc.mode.current", "mig.mode.current", "utilization.gpu"),
)


def provenance(sections: list[str]) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        "sections": sections,
        "device": device(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def device() -> dict[str, str]:
    """As nvidia-smi tells it, of the first device; before and after, clocks and heat differ."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    query = [program, "--id=0", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    values = [value.strip() for value in done.stdout.strip().split(",")]
    return dict(zip(ASKED, values, strict=True)) if len(values) == len(ASKED) else {}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
