"""What a gate makes of its two numbers: activation(gate) * up, within limits."""

from __future__ import annotations

from ...layers import OAI_SLOPE, Gate, GateActivation
from ..emit import Emitter, Value
from .mathematics import gelu, sigmoid, silu


def gated_product_of(e: Emitter, gate: Gate, x: Value, up: Value) -> Value:
    """Of vectors. A NaN stays."""
    if gate.activation is GateActivation.OAI:
        if gate.limit:
            x, up = _at_most(e, x, gate.limit), _within(e, up, gate.limit)
        return x * sigmoid(e, x * OAI_SLOPE) * (up + 1.0)
    act = silu if gate.activation is GateActivation.SILU else gelu
    active = act(e, x)
    if gate.limit:
        active, up = _at_most(e, active, gate.limit), _within(e, up, gate.limit)
    return active * up


def _at_most(e: Emitter, x: Value, limit: float) -> Value:
    high = e.const(x.type, limit)
    return (x > high).select(high, x)


def _within(e: Emitter, x: Value, limit: float) -> Value:
    low = e.const(x.type, -limit)
    x = _at_most(e, x, limit)
    return (x < low).select(low, x)
