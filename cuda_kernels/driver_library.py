"""The library that comes with NVIDIA's driver, called directly."""

from __future__ import annotations

import ctypes
import sys
from typing import Any


def driver_library() -> Any:
    """OSError if there is no driver."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
