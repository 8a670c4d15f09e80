"""Joining what several sources propose into one draft, every token with its source."""

from __future__ import annotations

from typing import Final

from .draft import Draft

UNKNOWN: Final = -1.0  # the chance of a token whose source gives none


def splice(cheap: Draft, model: Draft, max_draft: int) -> Draft:
    """The model's draft; where the cheap one begins with all of it, the rest of that behind it.
    Without a draft of the model, the cheap one."""
    n = len(model.tokens)
    if not cheap.tokens:
        return model.shortened(max_draft)
    if len(cheap.tokens) <= n or cheap.tokens[:n] != model.tokens:
        joined = Draft(
            model.tokens, model.sources, dict(model.ms), model.chances, model.distributions
        )
    else:
        joined = Draft(
            cheap.tokens,
            model.sources + cheap.sources[n:],
            dict(model.ms),
            _chances(cheap, model),
            model.distributions,  # the tail of the cheap one was not drawn
        )
    for source, ms in cheap.ms.items():
        joined.ms[source] = joined.ms.get(source, 0.0) + ms
    return joined.shortened(max_draft)


def _chances(cheap: Draft, model: Draft) -> list[float]:
    n = len(model.tokens)
    if not model.chances and not cheap.chances:
        return []
    first = model.chances or [UNKNOWN] * n
    return first + (cheap.chances[n:] or [UNKNOWN] * (len(cheap.tokens) - n))
