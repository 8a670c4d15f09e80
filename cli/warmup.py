"""`spec warmup`: compile what a file needs now, so that its first run need not."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

import typer

from ..core.errors import ModelError
from .console import Console
from .flags import flag, flag_group, takes_flags
from .open_model import open_runtime, warm_up
from .shared_options import ModelArgument, PlaceOptions, VoiceOptions
from .usage import flag_errors

if TYPE_CHECKING:
    from pathlib import Path


class Compiling(Console):
    """Counts the kernels that are compiled, and the seconds that this takes."""

    n_kernels = 0
    seconds = 0.0
    _start = 0.0

    def progress(self, stage: str, done: float) -> None:
        if found := re.match(r"compiling (\d+)", stage):
            now = time.perf_counter()
            if done >= 1:
                self.n_kernels += int(found[1])
                self.seconds += now - self._start
            elif not done:
                self._start = now
        super().progress(stage, done)


def clear(wanted: bool) -> None:
    if not wanted:
        return
    from ..core.backend.disk_caches import remove_kept

    output = Console()
    for each in remove_kept():
        size = f"{each.n_bytes / 2**20:.1f} MiB"
        output.line(f"removed {each.what}: {each.n_files} files, {size} from {each.folder}")
    raise typer.Exit


@flag_group("Model")
class ClearOptions:
    clear: bool = flag(
        "--clear",
        "Removal of all compiled kernels and of all weights kept by --repack-cache, without a "
        "warm-up.",
        callback=clear,
        is_eager=True,
    )


@flag_group("GPU")
class ArchOptions:
    arch: str | None = flag(
        "--arch N[,N...]",
        "GPUs to compile for with --device cuda, by compute capability times ten, such as 80, 86, "
        "89, 90, 100 or 120. No GPU is needed; the one that is there if not given.",
    )


@takes_flags
def warmup(
    models: ModelArgument,
    place: PlaceOptions,
    gpu: ArchOptions,
    clearing: ClearOptions,
    voice: VoiceOptions,
) -> None:
    """Compile the kernels that a file needs, for the CPU or for GPUs.

    They are kept in a cache, and the first run of the file finds them there: when an image is
    built, for example. With --repack-cache, the weights are kept as well.
    """
    output = Compiling(quiet=voice.quiet, verbose=voice.verbose)
    if place.device.partition(":")[0] == "cuda":
        _compile_for_gpus(models.model, place, gpu.arch, output)
        return
    if gpu.arch is not None:
        raise typer.BadParameter("--arch is for --device cuda")
    with open_runtime(models.model, place, output) as runtime:
        warm_up(runtime, output)
        device, repacked = runtime.device, runtime.backend.repacked_path
    _print_compiled(device, place, output)
    if place.repack_cache:
        _print_kept(repacked, output)


def _print_kept(repacked: Path | None, output: Console) -> None:
    if repacked is None:  # the reason was printed before
        from ..core.backend.cpu.repacked import repack_folder

        raise ModelError(f"the repacked weights could not be kept in {repack_folder()}")
    output.line(f"repacked weights: {repacked.stat().st_size / 2**30:.2f} GiB, kept in {repacked}")


def _compile_for_gpus(
    path: Path, place: PlaceOptions, wanted: str | None, output: Compiling
) -> None:
    from ..core.warm_up import compile_for_gpus, present_architectures

    if place.repack_cache:
        raise typer.BadParameter(f"--repack-cache is for --device cpu, not {place.device}")
    types = place.cache_type_k, place.cache_type_v
    with flag_errors(), output.cleared():
        archs = present_architectures(place.device) if wanted is None else _architectures(wanted)
        compiled = list(compile_for_gpus(path, archs, types, output.progress))
    for arch, made in compiled:
        found = f"nothing to compile: all kernels are in {made.folder}"
        if made.n_sources:
            counted = f"{made.n_sources} kernels in {made.seconds:.1f} s"
            found = f"compiled {counted}, kept in {made.folder}"
        output.line(f"sm_{arch}: {found}")


def _architectures(text: str) -> list[int]:
    parts = [part.strip().removeprefix("sm_") for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(
            f"--arch {text}: not a list of numbers; a GPU of compute capability 9.0 is --arch 90"
        )
    return list(dict.fromkeys(map(int, parts)))


def _print_compiled(device: str, place: PlaceOptions, output: Compiling) -> None:
    if device != "cpu":
        output.line(f"nothing to compile: --device {place.device} has its kernels ready")
        return
    from ..core.backend.cpu.machine_code import cache_folder

    folder = cache_folder()
    if not output.n_kernels:
        output.line(f"nothing to compile: all kernels are in {folder}")
        return
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ModelError(f"kernels were compiled, but could not be kept: cannot write to {folder}")
    output.line(f"compiled {output.n_kernels} kernels in {output.seconds:.1f} s, kept in {folder}")
