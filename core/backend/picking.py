"""How a sampler has a backend pick a token from a row of logits by itself.

A request is an array of int64 words, made once per sequence and read at every pick. It says what
`core/sampling` defines: so many best tokens, then filters, then the draw with the frozen noise.
The answer is the token, or `UNSURE` where the definition has to decide: the
numbers are broken, nothing is left, or a sum comes so near to a threshold that the last bits of
another exponential function could decide otherwise.
"""

from __future__ import annotations

from typing import Final

UNSURE: Final = -1

MAX_BEST: Final = 256  # tokens that filters begin with
MAX_BIASES: Final = 64
MAX_FILTERS: Final = 8

# Words of a request; filters follow, `FILTER_WORDS` each: kind, number (float64), count.
N_VOCAB, N_BEST, N_BIASES, BIAS_IDS, BIAS_VALUES, KEY_LOW, KEY_HIGH, SEQUENCE, N_FILTERS = range(9)
FIRST_FILTER: Final = 9
FILTER_WORDS: Final = 3

# Kinds of filters, and what their number and count are.
TOP_K: Final = 0  # keep `count`
TOP_P: Final = 1  # the fewest with probability `number`, at least `count`
MIN_P: Final = 2  # what is no farther below the best than `number` (negative), at least `count`
TEMPERATURE: Final = 3  # divide by `number`

SCRATCH_BYTES: Final = 4 * 8 * (MAX_BEST + 8)  # room that a pick works in
