"""ggml's own quantisers, out of the library that `xllamacpp` brings."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextn.core.gguf.quants import find_format


@cache
def _library() -> Any:
    import xllamacpp

    assert xllamacpp.__file__ is not None
    library = ctypes.CDLL(str(next(Path(xllamacpp.__file__).parent.glob("*.so"))))
    quantize = library.ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    number, pointer = ctypes.c_int64, ctypes.c_void_p
    quantize.argtypes = [ctypes.c_int, pointer, pointer, number, number, number, pointer]
    return library


def ggml_quantize(
    kind: str, rows: NDArray[np.float32], importance: NDArray[np.float32] | None = None
) -> NDArray[np.uint8]:
    form, library = find_format(kind), _library()
    out = np.zeros(form.n_bytes(rows.size), np.uint8)
    library.ggml_quantize_init(form.type_id)
    n_rows, width = rows.shape
    columns = None if importance is None else importance.ctypes.data
    written = library.ggml_quantize_chunk(
        form.type_id, rows.ctypes.data, out.ctypes.data, 0, n_rows, width, columns
    )
    assert written == out.size
    return out
