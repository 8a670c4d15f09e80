"""Tokens picked on the device: requests are read where samplers keep them on the host."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from ....cuda_kernels.head_pick import (
    REQUEST_WORDS,
    Logits,
    RowPlaces,
    device_request,
    head_pick,
)
from ....cuda_kernels.kernel import Array, Launcher
from .. import picking
from ..step import Ints, Step
from .device_contract import Numpy

NO_REQUEST_ROW = -1


def requests_of(step: Step) -> dict[str, Numpy]:
    """Of the sequences that have one, as arrays for the device."""
    assert step.requests is not None, "called only where there are some"
    rows = np.zeros((step.n_sequences, REQUEST_WORDS), np.int64)
    row_of = np.full(step.n_sequences, NO_REQUEST_ROW, np.int32)
    for b, address in enumerate(step.requests.tolist()):
        if address:
            rows[b], row_of[b] = request_row(address), b
    return {"requests": rows, "request_of": row_of, "sequence_of": _sequences(step)}


def _sequences(step: Step) -> Ints:
    """Of each row; -1 of rows of no sequence."""
    found = np.full(step.n_rows, -1, np.int32)
    found[: step.starts[-1]] = np.repeat(np.arange(step.n_sequences), np.diff(step.starts))
    return found


def request_row(address: int) -> NDArray[np.int64]:
    """What a sampler keeps there, as kernels read it."""
    head = _words(address, picking.FIRST_FILTER)
    n_filters, n_biases = int(head[picking.N_FILTERS]), int(head[picking.N_BIASES])
    words = _words(address, picking.FIRST_FILTER + picking.FILTER_WORDS * n_filters)
    ids = _words(int(head[picking.BIAS_IDS]), n_biases)
    biases = _words(int(head[picking.BIAS_VALUES]), n_biases).view(np.float64)
    return device_request(words, ids, biases)


def _words(address: int, n: int) -> NDArray[np.int64]:
    if not n:
        return np.zeros(0, np.int64)
    return np.ctypeslib.as_array((ctypes.c_int64 * n).from_address(address))


def pick(
    launcher: Launcher, rows: Array, maxima: Array, arrays: dict[str, Array], picked: Array
) -> None:
    """The token after each row of logits, or -1 where the definition has to decide."""
    places = RowPlaces(
        arrays["sequence_of"], arrays["positions"], arrays["request_of"], arrays["out_rows"]
    )
    head_pick(launcher, Logits(rows, maxima), arrays["requests"], places, picked)
