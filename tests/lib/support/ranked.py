"""Several ranks on the CPU: over the reference backend, or over the CUDA backend's shim."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.host_device import use_for_cuda

from nextn.core.backend.cuda.prompt_parts import PromptSizes
from nextn.core.backend.layers import HALF_FLOATS
from nextn.core.gguf.reader import open_gguf
from nextn.core.models.model import Model
from nextn.core.ranks.backend import RankedBackend
from nextn.core.ranks.load import load_ranked, open_ranks
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import SpecOptions
from nextn.core.state.sizes import StateSizes
from nextn.core.tokenizer import load_tokenizer

N_CTX = 128
SHORT_PROMPTS = PromptSizes(few=8, calls=(16, 32), chunk=64)
SIZES = StateSizes(N_CTX)


def patch(monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch, prompts=SHORT_PROMPTS)


def open_here(devices: list[str]) -> RankedBackend:
    return open_ranks(devices, HALF_FLOATS)


def load(path: Path, backend: RankedBackend, *, with_nextn: bool = True) -> Model:
    return load_ranked(open_gguf(path), backend, lambda model: SIZES, with_nextn=with_nextn)


def runtime_over(path: Path, backend: RankedBackend, spec: SpecOptions) -> Runtime:
    model = load(path, backend)
    file = open_gguf(path)
    return Runtime(file, model, backend, load_tokenizer(file.metadata), N_CTX, spec)
