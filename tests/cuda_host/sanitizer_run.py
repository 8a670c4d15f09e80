"""Kernel tests on a device under compute-sanitizer; what follows the command goes to pytest.

memcheck sees accesses beyond an array, racecheck hazards in shared memory, synccheck barriers that
not all reach. Where there is no device or no compute-sanitizer, one line says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOOLS = ("memcheck", "racecheck", "synccheck")
FOUND = 77  # exit code when a tool reports something


def compute_sanitizer() -> str | None:
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    folders = [str(Path(home) / "bin") for home in homes if home]
    return shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path=os.pathsep.join(folders)
    )


def problem() -> str | None:
    from nextn.cuda_kernels.device import unavailable_reason

    if reason := unavailable_reason():
        return reason
    return None if compute_sanitizer() else "compute-sanitizer is not installed (a part of CUDA)"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def run(tool: str, arguments: list[str]) -> int:
    command = [str(compute_sanitizer()), "--tool", tool, "--error-exitcode", str(FOUND)]
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests/cuda_kernels", *arguments]
    # Every tensor an allocation of its own, or an overrun would end in its neighbour.
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    say(f"== compute-sanitizer, {tool}")
    return subprocess.run([*command, *tests], cwd=ROOT, env=env, check=False).returncode


def main(arguments: list[str]) -> int:
    if reason := problem():
        say(f"compute-sanitizer: not run, {reason}")
        return 0
    failed = [tool for tool in TOOLS if run(tool, arguments)]
    say(f"compute-sanitizer: {'faults: ' + ', '.join(failed) if failed else 'no faults'}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
