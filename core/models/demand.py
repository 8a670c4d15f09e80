"""What a model will take of a machine's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from msgspec import Struct

from ..backend.interface import Backend, PlannedSteps, Working

if TYPE_CHECKING:
    from ..state.sizes import StateSizes
    from .model import Model
    from .model_weights import Inventory


class Demand(Struct, frozen=True):
    """What a model will take, known before its weights are read."""

    model: Model  # without weights
    weight_bytes: int  # as the backend will keep them
    stored_bytes: int  # of its matrices in the file
    planner: Backend | None = None  # on which the model can be run all the same

    @classmethod
    def of(cls, model: Model, inventory: Inventory, backend: Backend) -> Self:
        matrices = inventory.matrices
        stored = sum(part.tensor.n_bytes for parts in matrices for part in parts)
        planner = inventory.planner
        if planner is not None:
            return cls(model, planner.weight_bytes(), stored, planner)
        matrix_bytes = sum(map(backend.matrix_bytes, matrices))
        return cls(model, matrix_bytes + inventory.vector_bytes, stored)

    def working(self, sizes: StateSizes, prompt_rows: int) -> Working:
        """What its steps take beside weights and state. `prompt_rows`: at once, of a backend that
        does not say."""
        if self.planner is None:
            return Working()
        model = self.model
        return self.planner.working(
            PlannedSteps(
                model.forward,
                [net.forward for nets in model.drafters.values() for net in nets],
                model.hparams.n_embd,
                model.state_shape,
                sizes.n_ctx,
                sizes.n_slots,
                sizes.page_len,
                sizes.window,
                self.planner.prompt_chunk or prompt_rows,
            )
        )
