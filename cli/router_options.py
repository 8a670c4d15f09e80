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
    models_cache: bool | None = flag(
        "--models-cache/--no-models-cache",
        "Models in the hub's cache among those of the server, as OWNER/NAME:QUANT; if not given, "
        "beside --models-dir and --models-preset.",
        None,
    )
    models_download: bool | None = flag(
        "--models-download/--no-models-download",
        "Requests that download models of the hub and remove them from its cache; if not given, "
        "unless machines without a key can send them.",
        None,
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
        return bool(self.models_dir or self.models_preset or self.models_cache)

    @property
    def uses_cache(self) -> bool:
        return self.is_used and self.models_cache is not False

    def refusal(self, settings: ServerSettings) -> str:
        """Why requests may not change the hub's cache; empty if they may."""
        if self.models_download is False:
            return "this server downloads and removes no models (--no-models-download)"
        if not self.uses_cache:
            return "this server has no models of the hub (--no-models-cache)"
        is_open = settings.public_host is not None and not settings.api_keys
        if is_open and not self.models_download:
            return "without a key, --models-download permits that requests change the hub's cache"
        return ""

    def pool(self, settings: ServerSettings) -> PoolSettings:
        from ..core.server.router.model_pool import PoolSettings

        return PoolSettings(
            n_models=self.models_max,
            autoloads=self.models_autoload,
            n_bytes=None if self.models_memory < 0 else self.models_memory * _MIB,
            max_queue=settings.max_queue,
            queue_s=settings.queue_s,
        )
