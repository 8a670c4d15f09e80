"""The flags of `spec serve` for several models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from .flags import flag, flag_group

if TYPE_CHECKING:
    from ..core.server.router.model_pool import PoolSettings
    from ..core.server.settings import ServerSettings

_MIB: Final = 1 << 20


@flag_group("Several models")
class RouterOptions:
    models_dir: Path | None = flag(
        "--models-dir DIR",
        "Folder of models, GGUF: requests choose one by its name, and it is loaded for the first.",
    )
    models_preset: Path | None = flag(
        "--models-preset FILE",
        "INI file with a section of flags for each model, and [*] for all of them.",
    )
    models_max: int = flag(
        "--models-max N",
        "Maximum number of models in memory; the one that was used least recently is unloaded for "
        "another. 0: no limit.",
        4,
        min=0,
    )
    models_memory: int = flag(
        "--models-memory MIB",
        "Memory for all loaded models together, in MiB; -1: what the machine has free.",
        -1,
        min=-1,
    )
    models_autoload: bool = flag(
        "--models-autoload/--no-models-autoload",
        "Loading of the model that a request names; without it, POST /models/load does.",
        True,
    )

    @property
    def is_used(self) -> bool:
        return self.models_dir is not None or self.models_preset is not None

    def pool(self, settings: ServerSettings) -> PoolSettings:
        from ..core.server.router.model_pool import PoolSettings

        return PoolSettings(
            n_models=self.models_max,
            autoloads=self.models_autoload,
            n_bytes=None if self.models_memory < 0 else self.models_memory * _MIB,
            max_queue=settings.max_queue,
            queue_s=settings.queue_s,
        )
