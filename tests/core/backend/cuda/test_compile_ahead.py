"""Kernels that are compiled while weights are loaded: all that a model launches, and no later."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from checked_sources import if_backend_changed
from support.host_device import HostDevice, use_for_cuda
from support.running import random_tokens
from support.scripted import drain
from support.tiny_models import TinyModel

from nextn.core.backend.cuda.compile_ahead import AheadCompiler
from nextn.core.backend.cuda.prompt_parts import PromptSizes
from nextn.core.errors import ModelError
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import SpecOptions
from nextn.cuda_kernels.compile import CompileError
from nextn.cuda_kernels.kernel import Kernel, Report, Source

pytestmark = if_backend_changed

Tiny = Callable[..., TinyModel]
KERNELS = [Kernel(name, Source("none.cu"), "none", 32, 32) for name in "abc"]


@pytest.mark.parametrize(
    ("family", "kind"), [("qwen35moe", "Q8_0"), ("qwen35", "Q4_0"), ("qwen3", "BF16")]
)
@pytest.mark.slow
def test_all_that_is_launched_was_compiled_ahead(
    family: str, kind: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of three lengths, several texts, drafts, saved states, rounds without the host."""
    device, known = HostDevice(), set[str]()

    def warm(kernels: Iterable[Kernel], report: Report | None = None) -> None:
        known.update(kernel.name for kernel in kernels)

    monkeypatch.setattr(device.launcher, "warm", warm)
    sizes = PromptSizes(few=70, calls=(128,), chunk=128)
    use_for_cuda(monkeypatch, prompts=sizes, device=device)
    path = tiny(family, mtp=family != "qwen3", quantise=kind).path
    options = SpecOptions(types=("auto",), fixed=True, draft_n_max=3)
    with load_runtime(path, "cuda", n_ctx=256, spec=options) as runtime:
        launched = {launch.name for launch in device.launcher.launches}
        assert not launched
        for n in (1, 3):
            engine = runtime.new_engine(runtime.plan(n), build_speculator(runtime.setting(n)))
            for temperature in (0.0, 0.8):
                params = GenerateParams(SamplingParams(temperature=temperature), max_tokens=9)
                for i in range(n):
                    engine.add(random_tokens((9, 40, 100)[i], seed=i, n_vocab=256), params)
                drain(engine)
        launched = {launch.name for launch in device.launcher.launches}
    assert launched
    assert launched <= known


def launcher_of(warm: Callable[..., None]) -> Any:
    return SimpleNamespace(warm=warm)


def test_progress_is_reported_while_it_waits() -> None:
    reported: list[tuple[str, float]] = []
    go_on = Event()

    def warm(kernels: list[Kernel], note: Report) -> None:
        for i in range(3):
            note(i + 1, 3)
            go_on.wait(5)

    def report(what: str, done: float) -> None:
        reported.append((what, done))
        go_on.set()

    AheadCompiler(launcher_of(warm), lambda: KERNELS).finish(report)
    assert reported[0] == ("compiling 3 kernels", 1 / 3)
    assert {what for what, _ in reported} == {"compiling 3 kernels"}


def test_a_kernel_that_does_not_compile_is_one_line() -> None:
    def warm(kernels: list[Kernel], note: Report) -> None:
        raise CompileError("a.cu does not compile for sm_90")

    with pytest.raises(ModelError, match=r"^--device cuda: a kernel cannot be compiled: a\.cu"):
        AheadCompiler(launcher_of(warm), lambda: KERNELS).finish(lambda what, done: None)


def test_nothing_more_is_compiled_when_loading_has_failed() -> None:
    compiled: list[int] = []
    is_cancelled = Event()

    def warm(kernels: list[Kernel], note: Report) -> None:
        for i in range(3):
            compiled.append(i)
            is_cancelled.wait(5)
            note(i + 1, 3)

    compiling = AheadCompiler(launcher_of(warm), lambda: KERNELS)
    compiling.cancel()
    is_cancelled.set()
    with pytest.raises(InterruptedError):
        compiling.finish(lambda what, done: None)
    assert compiled == [0]
