"""In what two runs differ: machine, model, prompts, settings, configurations, versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields

from ..errors import ConfigError
from .record import BenchReport, RunSettings

# Of the provenance: what makes speeds incomparable, and its name.
_MACHINE: Final = {
    "cpu_info": "processor",
    "gpu_info": "GPU",
    "cores": "number of cores",
    "device": "device",
    "n_threads": "number of threads",
    "cpu_kernels": "instruction set",
    "model_sha256": "model",
    "n_ctx": "context size",
    "type_k": "type of cached keys",
    "type_v": "type of cached values",
}
_BUILD: Final = {"build_commit": "commit", "python": "Python"}
_CONFIGURATION: Final = ("server", "model", "model_path", "api", "options", "request")
_N_NAMED: Final = 4


class RunDifference(Struct, frozen=True):
    what: str
    a: str
    b: str

    @property
    def line(self) -> str:
        return f"{self.what}: A {self.a}, B {self.b}"


def machine_differences(a: BenchReport, b: BenchReport) -> Iterator[RunDifference]:
    """Differences of machine, model and like-named configurations: speeds are not comparable."""
    yield from _differences(_MACHINE, a.provenance, b.provenance)
    others = {each.name: each.details for each in b.configurations}
    for each in a.configurations:
        if each.name in others:
            names = {key: f"{key} of {each.name}" for key in _CONFIGURATION}
            yield from _differences(names, each.details, others[each.name])


def settings_differences(a: BenchReport, b: BenchReport) -> Iterator[RunDifference]:
    names = {field.name: field.name for field in fields(RunSettings)}
    settings = ({name: getattr(each.settings, name) for name in names} for each in (a, b))
    yield from _differences(names, *settings)


def build_differences(a: BenchReport, b: BenchReport) -> Iterator[RunDifference]:
    yield from _differences(_BUILD, a.provenance, b.provenance)
    versions = [each.provenance.get("versions") or {} for each in (a, b)]
    names = {name: f"version of {name}" for name in sorted({*versions[0], *versions[1]})}
    yield from _differences(names, *versions)


def check_comparable(now: BenchReport, before: BenchReport) -> None:
    """ConfigError: the figures of the two runs cannot be compared."""
    found = [*machine_differences(now, before), *settings_differences(now, before)]
    wrong = [f"the {each.what} is {each.a}, was {each.b}" for each in found]
    if now.prompt_set_sha256 != before.prompt_set_sha256:
        wrong.append(
            f"the prompts differ ({now.prompt_set} {now.prompt_set_sha256[:8]}, "
            f"were {before.prompt_set} {before.prompt_set_sha256[:8]})"
        )
    known = {each.name for each in before.configurations}
    for each in now.configurations:
        if each.name not in known:
            wrong.append(f"configuration {each.name} is not in the baseline")
    if wrong:
        raise ConfigError(
            f"baseline: the two runs cannot be compared: {'; '.join(wrong[:_N_NAMED])}"
            + (f"; and {len(wrong) - _N_NAMED} more" if len(wrong) > _N_NAMED else "")
        )


def _differences(
    names: dict[str, str], a: dict[str, Any], b: dict[str, Any]
) -> Iterator[RunDifference]:
    for key, name in names.items():
        if a.get(key) != b.get(key):
            yield RunDifference(name, _shown(a.get(key)), _shown(b.get(key)))


def _shown(value: Any) -> str:
    text = "unknown" if value is None else str(value)
    return text if len(text) <= 48 else f"{text[:45]}..."
