"""The token after each row of logits, as `core/sampling` would pick it.

A request says how the tokens of a sequence are picked (`core/backend/picking.py` has its words).
On a device it is one row of fixed size, biases included:

    0 .. 8      as in `picking.py`; the two words that are addresses there are 0
    9 .. 32     filters, three words each: kind, number (the bits of a float64), count
    33 .. 96    ids of biased tokens
    97 .. 160   their biases, the bits of float64

The requests of all texts are the rows of one array; `request_of` says which row is whose.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .kernel import Array, Kernel, Launcher, Source
from .shapes import matrix_shape, require_shape

MAXIMA_BLOCK = 64  # logits that share a maximum
MAX_BIASES, MAX_FILTERS, FILTER_WORDS, FIRST_FILTER = 64, 8, 3, 9
N_BIASES, BIAS_IDS, BIAS_VALUES, N_FILTERS = 2, 3, 4, 8  # words of a request on the host
_ID_WORDS = FIRST_FILTER + FILTER_WORDS * MAX_FILTERS
_VALUE_WORDS = _ID_WORDS + MAX_BIASES
REQUEST_WORDS = _VALUE_WORDS + MAX_BIASES
PICK_THREADS = 256
MAX_LOGITS = 32 * PICK_THREADS * MAXIMA_BLOCK

SOURCE = Source("head_pick.cu")
HEAD_SUMMITS = Kernel("head_summits", SOURCE, "HostOutput.maxima", threads=256, registers=40)
HEAD_PICK = Kernel(
    "head_pick", SOURCE, "core.sampling.pick", threads=PICK_THREADS, registers=144, shared=40_000
)
NOISE_OF = Kernel("noise_of", SOURCE, "core.sampling.noise.gumbel", threads=256, registers=48)
KERNELS = (HEAD_SUMMITS, HEAD_PICK, NOISE_OF)


def device_request(
    words: NDArray[np.int64], ids: NDArray[np.int64], biases: NDArray[np.float64]
) -> NDArray[np.int64]:
    """A host's request with its biases as a row for the device."""
    n_filters = int(words[N_FILTERS])
    if len(ids) != len(biases) or len(ids) != words[N_BIASES] or len(ids) > MAX_BIASES:
        raise ValueError(f"a request of {words[N_BIASES]} biases with {len(ids)} of them")
    if n_filters > MAX_FILTERS or len(words) != FIRST_FILTER + FILTER_WORDS * n_filters:
        raise ValueError(f"a request of {len(words)} words with {n_filters} filters")
    row = np.zeros(REQUEST_WORDS, np.int64)
    row[: len(words)] = words
    row[[BIAS_IDS, BIAS_VALUES]] = 0
    row[_ID_WORDS : _ID_WORDS + len(ids)] = ids
    row[_VALUE_WORDS : _VALUE_WORDS + len(biases)] = biases.view(np.int64)
    return row


@dataclass(frozen=True, slots=True)
class Logits:
    """Rows of a head, of which the first `n` numbers count, and what is known of 64 each."""

    rows: Array  # float32 (R, stride)
    maxima: Array  # float32 (R, blocks or more): the best; NaN if one is NaN
    sums: Array | None = None  # float32, as maxima: the sum of exp(x - best)
    n: int | None = None  # None: all

    @property
    def n_logits(self) -> int:
        return int(self.rows.shape[1]) if self.n is None else self.n

    @property
    def n_blocks(self) -> int:
        return -(-self.n_logits // MAXIMA_BLOCK)

    def check(self) -> None:
        n_rows, stride = matrix_shape("logits", self.rows)
        if not 1 <= self.n_logits <= min(stride, MAX_LOGITS):
            raise ValueError(
                f"{self.n_logits} logits in rows of {stride}, at most {MAX_LOGITS} are picked from"
            )
        for name, array in (("maxima", self.maxima), ("sums", self.sums)):
            if array is None:
                continue
            if array.shape[0] != n_rows or array.shape[1] < self.n_blocks:
                raise ValueError(
                    f"{name}: {tuple(array.shape)} for {n_rows} rows of {self.n_blocks} blocks"
                )
        if self.sums is not None:
            require_shape("sums", self.sums, matrix_shape("maxima", self.maxima))


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Which text each row of logits belongs to, and where in it."""

    sequence_of: Array  # int32 (T,) of each row of the step; -1: of none
    positions: Array  # int32 (T,); the token picked from a row has the position after its own
    request_of: Array  # int32 (B,) row of `requests` of each sequence; -1: it has none
    out_rows: Array | None = (
        None  # int32 (R,) row of the step of each row of logits; None: the same
    )


def head_summits(launcher: Launcher, logits: Logits) -> None:
    """Fills `maxima` and `sums`; for maxima alone, a head may do it by itself."""
    logits.check()
    n_rows, stride = logits.rows.shape
    launcher.launch(
        HEAD_SUMMITS,
        (-(-logits.n_blocks // 32), n_rows),
        [logits.rows, int(stride), logits.n_logits, logits.maxima, logits.sums,
         int(logits.maxima.shape[1])],
    )  # fmt: skip


def head_pick(
    launcher: Launcher, logits: Logits, requests: Array, places: RowPlaces, picked: Array
) -> None:
    """`picked` int32 (R,): the token after each row, or -1 where the definition has to decide.

    `requests`: int64 (any, REQUEST_WORDS), rows from `device_request`; their N_VOCAB is `n`.
    """
    logits.check()
    n_rows, stride = logits.rows.shape
    check_requests(requests)
    n_places = places.positions.shape[0]
    if places.sequence_of.shape[0] != n_places:
        raise ValueError(f"{n_places} positions, {places.sequence_of.shape[0]} sequences of rows")
    mapped = n_places if places.out_rows is None else places.out_rows.shape[0]
    if mapped < n_rows or picked.shape[0] < n_rows:
        raise ValueError(f"{n_rows} rows of logits, places of {mapped}, {picked.shape[0]} picked")
    launcher.launch(
        HEAD_PICK,
        int(n_rows),
        [logits.rows, int(stride), logits.n_logits, logits.maxima, int(logits.maxima.shape[1]),
         requests, places.request_of, places.sequence_of, places.positions, places.out_rows,
         picked],
    )  # fmt: skip


def check_requests(requests: Array) -> None:
    if len(requests.shape) != 2 or requests.shape[1] != REQUEST_WORDS:
        raise ValueError(f"requests: {tuple(requests.shape)}, rows have {REQUEST_WORDS} words")


def noise_of(launcher: Launcher, places: Array, tokens: Array, words: Array, noise: Array) -> None:
    """Of tokens (n,) at places uint32 (n, 4) (seed low, high, position, sequence): the random words
    uint32 (n,) and the noise float64 (n,). For tests."""
    n = int(tokens.shape[0])
    launcher.launch(NOISE_OF, -(-n // 256), [places, tokens, words, noise, n])
