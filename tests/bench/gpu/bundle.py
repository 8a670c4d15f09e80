"""What a borrowed machine with a GPU and no network lacks, into the folder .gpu: `make gpu-bundle`.

Wheels of packages that are seldom installed beside torch and CuPy, our own for its metadata, and
the machine code of all kernels, so that no time on the device goes into compiling.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[3]
LACKING = ("gguf", "llguidance", "msgspec", "starlette", "typer", "uvicorn")
PLATFORMS = (17, 24, 27, 28)  # glibc 2.x of wheels that may do


def main() -> None:
    parser = argparse.ArgumentParser(prog="make gpu-bundle", description=__doc__)
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU")
    parser.add_argument("--arch", type=int, default=90, help="of the GPU")
    parser.add_argument("--to", type=Path, default=ROOT / ".gpu")
    options = parser.parse_args()
    shutil.rmtree(options.to, ignore_errors=True)
    options.to.mkdir(parents=True)
    fetch_wheels(options.to, options.python)
    compile_kernels(options.to, options.arch)
    size = sum(path.stat().st_size for path in options.to.rglob("*") if path.is_file())
    sys.stdout.write(f"{options.to}: {size / 1e6:.1f} MB\n")


def fetch_wheels(folder: Path, python: str) -> None:
    names = ["manylinux2014_x86_64", *(f"manylinux_2_{n}_x86_64" for n in PLATFORMS)]
    platforms = [word for name in names for word in ("--platform", name)]
    pip(
        "download", "--no-deps", "--only-binary=:all:", "--python-version", python,
        "--implementation", "cp", *platforms, "-d", str(folder), *LACKING,
    )  # fmt: skip
    left = ROOT / "build"  # by setuptools, whose next wheel would take files from it
    was_there = left.exists()
    pip("wheel", "--no-deps", "-w", str(folder), str(ROOT))
    if not was_there:
        shutil.rmtree(left, ignore_errors=True)


def pip(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", words[0], "-q", *words[1:]], check=True)


def compile_kernels(folder: Path, arch: int) -> None:
    """All that tests launch, and what the models of `bench.gpu` need beside it."""
    os.environ["SPEC_CACHE_DIR"] = str(folder)
    from nextn.cuda_kernels.cache import CubinCache, default_folder
    from nextn.cuda_kernels.compile import Compiler
    from nextn.cuda_kernels.registry import all_sources

    from . import loaded
    from .plan import PLANS
    from .random_weights import write_shapes

    Compiler(CubinCache(default_folder())).compile_all((s, arch) for s in all_sources())
    with TemporaryDirectory() as scratch:
        for plan in PLANS:
            path = write_shapes(Path(scratch) / f"{plan.name}.gguf", plan.sizes)
            loaded.compile_kernels(path, arch)


if __name__ == "__main__":
    main()
