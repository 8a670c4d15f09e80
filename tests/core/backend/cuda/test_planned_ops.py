"""What is planned of rare operations: the kernels that steps and prompts of theirs launch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.host_device import HostDevice, use_for_cuda
from support.ops_alone import PROMPTS, Bench, OpsAlone

from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.cuda.counting_device import PlannedDevice
from nextn.core.backend.layers import Gate

from .test_attention_ops import CASES as ATTENTION
from .test_attention_ops import attending, latent
from .test_moe_ops import CASES as MIXTURES
from .test_moe_ops import WIDTH as MOE_WIDTH
from .test_moe_ops import routing
from .test_row_ops import WIDTH, gated, norms_behind, on_rows

Maker = Callable[[Bench], tuple[OpsAlone, int]]
MAKERS: dict[str, Maker] = {
    "a cap": lambda bench: attending(bench, ATTENTION["cap"]),
    "values from keys": lambda bench: attending(bench, ATTENTION["values from keys"]),
    "latent": lambda bench: latent(bench, "Q8_0"),
    "groups": lambda bench: (routing(bench, MIXTURES["groups, apart"]), MOE_WIDTH),
    "limits": lambda bench: (
        OpsAlone(bench, gated(Gate(limit=0.5), "Q8_0", "ffn")(bench)),
        WIDTH,
    ),
    "norms behind": lambda bench: (OpsAlone(bench, on_rows(norms_behind)(bench)), WIDTH),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_plan_has_the_kernels_that_are_launched(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_for_cuda(monkeypatch, prompts=PROMPTS)
    real, planned = Bench("cuda"), Bench("cuda")
    assert isinstance(real.backend, CudaBackend)
    twin = planned.backend.planner()
    assert isinstance(twin, CudaBackend)
    assert isinstance(twin.device, PlannedDevice)
    planned.backend = twin
    (ours, width), (theirs, _) = MAKERS[name](real), MAKERS[name](planned)
    assert twin.device.live_bytes > 0
    rows = np.random.default_rng(1).standard_normal((14, width)).astype(np.float32)
    for alone in (ours, theirs):
        alone(rows, [10, 3, 1])
    assert isinstance(real.backend.device, HostDevice)
    launched = {launch.name for launch in real.backend.device.launcher.launches}
    assert {kernel.name for kernel in twin.device.launcher.kernels} == launched
