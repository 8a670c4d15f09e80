"""What a cubin (an ELF file) says of its kernels: parameters, and threads of a block.

The driver checks neither: with an argument too few or one of the wrong size a kernel reads what
happens to lie there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

SECTION_OF = ".nv.info."  # and the kernel's name: its attributes
# An attribute is (format, number, 16 bits); in this format these are the size of what follows.
SIZED = 4
MAX_THREADS = 0x05  # x, y, z: __launch_bounds__
PARAMETER = 0x17  # index, ordinal, offset; the size in the upper 14 bits of the last word
SECTION = struct.Struct("<IIQQQQIIQQ")


@dataclass(frozen=True, slots=True)
class Shape:
    """The launch configuration of a kernel."""

    parameters: tuple[int, ...]  # bytes of each, in their order
    threads: int | None  # of a block at most, if the source says


def shapes(image: bytes) -> dict[str, Shape]:
    return {
        name.removeprefix(SECTION_OF): _shape(data)
        for name, data in _sections(image)
        if name.startswith(SECTION_OF)
    }


def _shape(data: bytes) -> Shape:
    sizes: dict[int, int] = {}
    threads = None
    for number, value in _attributes(data):
        if number == MAX_THREADS:
            x, y, z = struct.unpack("<III", value)
            threads = x * y * z
        elif number == PARAMETER:
            _index, ordinal, _offset, word = struct.unpack("<IHHI", value)
            sizes[ordinal] = word >> 18
    return Shape(tuple(sizes[i] for i in sorted(sizes)), threads)


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 4 <= len(data):
        form, number, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == SIZED:
            yield number, data[at : at + size]
            at += size


def _sections(image: bytes) -> Iterator[tuple[str, bytes]]:
    if image[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    (start,) = struct.unpack_from("<Q", image, 40)
    size, count, names_at = struct.unpack_from("<HHH", image, 58)
    headers = [SECTION.unpack_from(image, start + i * size) for i in range(count)]
    names_offset = headers[names_at][4]
    for name, _type, _flags, _address, offset, length, *_ in headers:
        first = names_offset + name
        yield image[first : image.index(b"\0", first)].decode(), image[offset : offset + length]
