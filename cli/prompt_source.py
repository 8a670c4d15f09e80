"""The prompt, from exactly one source: an argument, -p, -f, `-`, or a pipe."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Final

import typer

from ..core.errors import ConfigError
from ..core.gguf.read_bounded import read_bounded, read_open_bounded

_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
MAX_BYTES: Final = 1 << 28  # no model has so long a context
HINT: Final = "no prompt: give one as an argument, with -p TEXT or -f FILE, or pipe it in"


def read_prompt(
    argument: str | None, flag: str | None, file: Path | None, *, escape: bool = False
) -> str:
    """Text is taken exactly as given, but for escapes in the flag; files and pipes lose one final
    newline.

    A pipe counts only where nothing else was given: in CI every command has some standard
    input, and reading it could block forever.
    """
    sources = {"PROMPT": argument, "--prompt": flag, "--file": file}
    given = {name: value for name, value in sources.items() if value is not None}
    if len(given) > 1:
        raise typer.BadParameter(f"more than one prompt: {' and '.join(given)}; give one")
    if "-" in map(str, given.values()):
        return read_stdin()
    if file is not None:
        return read_file(file)
    if argument is not None:
        return text_of_argument(argument)
    if flag is not None:
        return text_of_argument(unescaped(flag) if escape else flag)
    if sys.stdin.isatty():
        raise typer.BadParameter(HINT)
    piped = read_stdin()
    if not piped:
        raise typer.BadParameter(f"{HINT} (standard input is empty)")
    return piped


def one_of(flag: str, text: str | None, file: Path | None) -> str | None:
    """Return the text of `--x TEXT` or `--x-file FILE`; None if neither is given."""
    if text is not None and file is not None:
        raise typer.BadParameter(f"--{flag} and --{flag}-file exclude each other")
    if file is not None:
        return read_file(file)
    return None if text is None else text_of_argument(text)


def unescaped(text: str) -> str:
    r"""Return the text with \n and the like as what they stand for, by llama.cpp's rules."""
    data = os.fsencode(text)
    return os.fsdecode(re.sub(rb"\\(?:x([0-9a-fA-F]{2})|([nrt'\"\\]))", _escaped, data))


def _escaped(found: re.Match[bytes]) -> bytes:
    code, letter = found.groups()
    return bytes.fromhex(code.decode()) if code else _ESCAPES.get(letter, letter)


def text_of_argument(text: str) -> str:
    """Return the argument decoded: Python passes bytes that are not UTF-8 as surrogates."""
    return decode(text.encode("utf-8", "surrogateescape"), "the command line")


def read_file(file: Path) -> str:
    return decode_document(read_bounded(file, MAX_BYTES), str(file))


def read_stdin() -> str:
    try:
        data = read_open_bounded(sys.stdin.buffer, MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"standard input cannot be read: {error.strerror}") from None
    return decode_document(data, "standard input")


def decode_document(data: bytes, source: str) -> str:
    """Return the text without the byte-order mark and final newline that editors and `echo` add."""
    return re.sub(r"\r?\n\Z", "", decode(data, source).removeprefix("\ufeff"))


def decode(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is 0x{data[error.start]:02x}"
        raise ConfigError(f"{source}: the text must be UTF-8; {wrong}") from None
