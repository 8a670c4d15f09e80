"""Flags in place of what a model's file says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from .flags import flag, flag_group
from .usage import flag_errors

if TYPE_CHECKING:
    from ..core.gguf.overrides import Scalar

_SCALINGS: Final = ("none", "linear", "yarn")
_KEYS: Final = {
    "rope_freq_base": "rope.freq_base",
    "yarn_orig_ctx": "rope.scaling.original_context_length",
    "yarn_ext_factor": "rope.scaling.yarn_ext_factor",
    "yarn_attn_factor": "rope.scaling.attn_factor",
    "yarn_beta_slow": "rope.scaling.yarn_beta_slow",
    "yarn_beta_fast": "rope.scaling.yarn_beta_fast",
}


def _yarn(name: str, help: str) -> Any:
    return flag(f"--yarn-{name} X", f"{help}; -1: as the file says.", -1.0)


@flag_group("Model's keys")
class OverrideOptions:
    override_kv: list[str] | None = flag(
        "--override-kv KEY=TYPE:VALUE",
        "Value of a key in place of the file's, as in llama.context_length=int:4096; TYPE: int, "
        "float, bool or str. May be given several times.",
    )
    rope_scaling: str | None = flag(
        "--rope-scaling none|linear|yarn", "Scaling of positions, for long contexts."
    )
    rope_scale: float | None = flag("--rope-scale X", "Factor by which the context is longer.")
    rope_freq_base: float | None = flag("--rope-freq-base X", "Base of the rotary frequencies.")
    rope_freq_scale: float | None = flag("--rope-freq-scale X", "1 divided by --rope-scale.")
    yarn_orig_ctx: int = flag(
        "--yarn-orig-ctx N", "Context length before YaRN; 0: as the file says.", 0, min=0
    )
    yarn_ext_factor: float = _yarn("ext-factor", "Share of slow pairs that keep their frequency")
    yarn_attn_factor: float = _yarn("attn-factor", "Factor of the magnitude of YaRN")
    yarn_beta_slow: float = _yarn("beta-slow", "Turns of a pair that YaRN stretches wholly")
    yarn_beta_fast: float = _yarn("beta-fast", "Turns of a pair that YaRN leaves as it is")

    def values(self) -> dict[str, Scalar]:
        """By key; wrong values are usage errors."""
        from ..core.gguf.overrides import parse_overrides

        found: dict[str, Scalar] = {}
        with flag_errors():
            for text in self.override_kv or ():
                found |= parse_overrides(text)
        if self.rope_scaling is not None:
            if self.rope_scaling not in _SCALINGS:
                raise typer.BadParameter(
                    f"--rope-scaling must be none, linear or yarn, got {self.rope_scaling!r:.60}"
                )
            found["rope.scaling.type"] = self.rope_scaling
        if (factor := self._factor()) is not None:
            found["rope.scaling.factor"] = factor
        for name, key in _KEYS.items():
            value = getattr(self, name)
            if value is not None and value > 0:
                found[key] = value
        if self.yarn_ext_factor == 0:
            found[_KEYS["yarn_ext_factor"]] = 0.0
        return found

    def _factor(self) -> float | None:
        if self.rope_scale is not None and self.rope_freq_scale is not None:
            raise typer.BadParameter("--rope-scale and --rope-freq-scale exclude each other")
        for name in ("rope_scale", "rope_freq_scale", "rope_freq_base"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                flag_name = name.replace("_", "-")
                raise typer.BadParameter(f"--{flag_name} must be more than 0, got {value:g}")
        return self.rope_scale if self.rope_freq_scale is None else 1 / self.rope_freq_scale
