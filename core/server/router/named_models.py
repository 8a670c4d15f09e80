"""Which of several models a name means, as the clients of llama-server and Ollama write names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeVar

from ...hub.hub_models import PREFERRED

T = TypeVar("T")
LATEST: Final = ":latest"  # Ollama's clients add it
_HOSTS: Final = ("hf.co/", "huggingface.co/")  # Ollama's names of the hub


def hub_name(name: str) -> str:
    """Without what only Ollama's clients write."""
    for host in _HOSTS:
        name = name.removeprefix(host)
    return name.removesuffix(LATEST)


def find_named(models: Mapping[str, T], name: str) -> T | None:
    """`owner/name:q4_k_m` is the model of that name in any letters; `owner/name` is that of its
    quantisations which `-hf` chooses."""
    for each in _spellings(name):
        if each in models:
            return models[each]
    wanted = hub_name(name).lower()
    if "/" not in wanted:
        return None
    by_name = {each.lower(): model for each, model in models.items()}
    for quant in ("", *(f":{each.lower()}" for each in PREFERRED)):
        if (found := by_name.get(f"{wanted}{quant}")) is not None:
            return found
    starts = sorted(each for each in by_name if each.startswith(f"{wanted}:"))
    return by_name[starts[0]] if starts else None


def _spellings(name: str) -> Iterator[str]:
    yield name
    yield name.removesuffix(LATEST)
    yield hub_name(name)
