"""`CudaMachine`: what forward passes run on."""

from __future__ import annotations

from ..step import Step
from .cuda_ops import CudaOps
from .device_contract import Device
from .prompt_ops import PromptOps
from .prompt_parts import PartialStep, PromptSizes, parts_of, with_received


class CudaMachine:
    """A device, its operations, and how prompts are cut on it."""

    def __init__(self, device: Device, ops: CudaOps, prompts: PromptSizes) -> None:
        self.device, self.launcher = device, device.launcher
        self.ops, self.prompts = ops, prompts

    def prompt_ops(self, n_rows: int) -> PromptOps:
        """The same operations for so many rows of one prompt."""
        return PromptOps(self.ops.parts, self.prompts.call(n_rows), self.prompts.few)

    def parts_of(self, step: Step) -> list[PartialStep]:
        """Its prompts and the rest of it, with the rows that another rank has sent."""
        parts = parts_of(step, self.prompts.few)
        if step.received is None or not any(part.is_prompt for part in parts):
            return parts
        return with_received(self.device, step.received, parts)
