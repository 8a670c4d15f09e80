"""`spec warmup`: compile what a file needs now, so that its first run need not."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from ..core.errors import ModelError
from .flags import takes_flags
from .loading import open_runtime, warm_up
from .options import ModelArgument, PlaceOptions, VoiceOptions
from .output import Output

if TYPE_CHECKING:
    from pathlib import Path


class Compiling(Output):
    """Counts what it reports, and measures it."""

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


@takes_flags
def warmup(models: ModelArgument, place: PlaceOptions, voice: VoiceOptions) -> None:
    """Compile the kernels that a file needs.

    They are kept in a cache, and the first run of the file finds them there: when an image is
    built, for example.
    """
    output = Compiling(quiet=voice.quiet, verbose=voice.verbose)
    with open_runtime(models.model, place, output) as runtime:
        warm_up(runtime, output)
        device = runtime.device
    if device != "cpu":
        output.line(f"nothing to compile: --device {place.device} has its kernels ready")
        return
    folder = kernel_folder()
    if not output.n_kernels:
        output.line(f"nothing to compile: all kernels are in {folder}")
        return
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise ModelError(f"kernels were compiled, but could not be kept: cannot write to {folder}")
    output.line(f"compiled {output.n_kernels} kernels in {output.seconds:.1f} s, kept in {folder}")


def kernel_folder() -> Path:
    from ..core.backend.cpu.compile import cache_folder

    return cache_folder()
