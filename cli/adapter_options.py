"""Flags of LoRA adapters."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Final

import typer

from .flags import flag, flag_group

LORA: Final = flag(
    "--lora FILE",
    "LoRA adapter, GGUF, added to the model's products and not merged. May be given several "
    "times, or as FILE,FILE.",
)
LORA_SCALED: Final = flag(
    "--lora-scaled FILE:SCALE", "The same with a scale; may be FILE:SCALE,FILE:SCALE."
)


@flag_group("Model")
class AdapterOptions:
    lora: list[str] | None = LORA
    lora_scaled: list[str] | None = LORA_SCALED

    def files(self) -> list[tuple[Path, float]]:
        """With their scales."""
        return adapter_files(self.lora, self.lora_scaled)


@flag_group("Model")
class ServedAdapterOptions(AdapterOptions):
    lora_init_without_apply: bool = flag(
        "--lora-init-without-apply",
        "Adapters are loaded with scale 0: requests, or POST /lora-adapters, set scales.",
    )

    def files(self) -> list[tuple[Path, float]]:
        """With their scales."""
        found = AdapterOptions.files(self)  # a class with slots is made anew, so no super()
        return [(path, 0.0) for path, _ in found] if self.lora_init_without_apply else found


def adapter_files(plain: list[str] | None, scaled: list[str] | None) -> list[tuple[Path, float]]:
    """Files that exist, with their scales; those of --lora come first."""
    found = [(Path(name), 1.0) for name in _each(plain)] + [*map(_scaled, _each(scaled))]
    for path, _ in found:
        if not path.is_file():
            raise FileNotFoundError(2, "no such file", str(path))
    return found


def _each(given: list[str] | None) -> list[str]:
    """A file's own name may have commas."""
    return [
        name for text in given or () for name in ([text] if _is_file(text) else text.split(","))
    ]


def _is_file(text: str) -> bool:
    """Whether it is one file's name, or that with a scale."""
    return Path(text).is_file() or Path(text.rpartition(":")[0]).is_file()


def _scaled(text: str) -> tuple[Path, float]:
    name, _, scale = text.rpartition(":")
    try:
        factor = float(scale)
    except ValueError:
        factor = float("nan")
    if not name or not isfinite(factor):
        raise typer.BadParameter(f"--lora-scaled needs FILE:SCALE, as in a.gguf:0.5; got {text!r}")
    return Path(name), factor
