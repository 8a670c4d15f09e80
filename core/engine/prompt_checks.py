"""Checks of prompts before they are queued: ids, lengths, rows of images."""

from __future__ import annotations

from collections.abc import Sequence as Tokens

from ..backend.interface import Backend
from ..errors import ConfigError
from ..models.hparams import Hparams
from ..models.model import Model
from ..state.embedded_rows import ModelPrompt


def check_tokens(tokens: Tokens[int], n_vocab: int, first: int = 0) -> None:
    """`first`: the place of the first one."""
    if not len(tokens):
        raise ConfigError("the prompt is empty, and this model has no token to begin with")
    for i, token in enumerate(tokens, first):
        if not 0 <= token < n_vocab:
            raise ConfigError(
                f"token id {token} at place {i} is outside the vocabulary of {n_vocab}"
            )


def check_prompt(prompt: Tokens[int] | ModelPrompt, h: Hparams, n_ctx: int) -> None:
    given = prompt if isinstance(prompt, ModelPrompt) else ModelPrompt(list(prompt))
    if given.runs:
        given.check_rows(h.row_width)
    for first, tokens in given.texts() if given.runs else [(0, given.tokens)]:
        check_tokens(tokens, h.n_vocab, first)
    check_length(len(prompt), n_ctx)


def check_length(n_tokens: int, n_ctx: int) -> None:
    if n_tokens >= n_ctx:
        raise ConfigError(
            f"the prompt has {n_tokens} tokens, which exceeds the available context size "
            f"of {n_ctx}; shorten it or give a larger -c"
        )


def check_images(prompt: ModelPrompt, model: Model, backend: Backend, chunk: int) -> None:
    """ConfigError for rows that the model or its backend cannot place, and for those of an image
    that have to be in one step, which has `chunk` rows."""
    check_axes(prompt, model, backend)
    for run in prompt.runs:
        if not run.bidirectional:
            continue
        if not model.is_bidirectional:
            raise ConfigError(
                f"the rows at place {run.first} of the prompt see each other, which this model has "
                "no layer for: give them as an array"
            )
        if not backend.looks_ahead:
            raise ConfigError(
                f"--device {backend.name} has no attention in both directions, which images of "
                "this model need; use --device cpu"
            )
        if len(run.rows) > chunk:
            raise ConfigError(
                f"the image at place {run.first} of the prompt has {len(run.rows)} rows, and this "
                f"model reads those of an image in one step, of {chunk} at most: give "
                "--image-max-tokens"
            )


def check_axes(prompt: ModelPrompt, model: Model, backend: Backend) -> None:
    """ConfigError for positions that the model or its backend does not know."""
    if prompt.runs and model.hparams.n_deepstack and not backend.runs_towers:
        raise ConfigError(
            f"--device {backend.name} does not add rows behind layers, which images of this model "
            "have; use --device cpu"
        )
    if not prompt.has_axes:
        return
    if not model.has_axes:
        raise ConfigError(
            "the prompt has rows with positions in height and width, and this model's rope has one "
            "position for each row: give them without"
        )
    if not backend.turns_by_axes:
        raise ConfigError(
            f"--device {backend.name} does not know positions in height and width, which images of "
            "this model have; use --device cpu"
        )
