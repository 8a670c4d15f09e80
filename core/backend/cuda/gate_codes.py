"""Gates of feed-forward layers as kernels take them."""

from __future__ import annotations

from ....cuda_kernels.qmm import OAI_LIMIT, Activation, gate_code
from ...errors import ConfigError
from ..layers import Gate, GateActivation

_ACTIVATIONS = {
    GateActivation.SILU: Activation.SILU,
    GateActivation.GELU: Activation.GELU,
    GateActivation.OAI: Activation.OAI,
}


def gate_of(gate: Gate) -> int:
    if gate.activation is GateActivation.OAI and gate.limit != OAI_LIMIT:
        raise ConfigError(
            f"--device cuda: gates like those of gpt-oss have the limit {OAI_LIMIT}, not "
            f"{gate.limit}; use --device cpu"
        )
    return gate_code(_ACTIVATIONS[gate.activation], gate.limit)
