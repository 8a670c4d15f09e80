"""A text that is paused and goes on, here or in another process, is that without a pause."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

import nextn
from nextn.core.state.snapshot import SequenceSnapshot

pytestmark = pytest.mark.threads

PROMPT = "def fibonacci(n):\n    if n < 2:\n        return n\n"
WAYS: list[nextn.GenerationOptions] = [
    {"max_tokens": 60, "temperature": 0.0},
    {"max_tokens": 60, "temperature": 0.9, "top_k": 20, "seed": 7},
    {"max_tokens": 60, "temperature": 0.7, "repeat_penalty": 1.2, "dry_multiplier": 0.8, "seed": 3},
    {"max_tokens": 60, "grammar": 'root ::= [a-z ]+ "."', "seed": 5},
    {"max_tokens": 60, "mirostat": 2, "seed": 2},
    {"max_tokens": 60, "temperature": 0.0, "speculation": "none", "logprobs": 2},
    {"max_tokens": 60, "temperature": 0.0, "stop": ["zzz", "\n\n\n\n"]},
]
LONG = nextn.GenerationOptions(max_tokens=200, temperature=0.9, top_k=20, seed=7)
# Goes on with the file that is its argument, as a program of its own.
ELSEWHERE = """
import sys
import nextn
with nextn.load("nano", n_ctx=512, parallel=2, threads=1) as model:
    sys.stdout.write("".join(piece.text for piece in model.resume(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def model() -> Iterator[nextn.LanguageModel]:
    with nextn.load("nano", n_ctx=256, parallel=3) as loaded:
        yield loaded


def same(piece: nextn.Piece) -> nextn.Piece:
    """But for its drafter, and its end: that of the pause comes without a token."""
    return piece._replace(source="")


@pytest.mark.parametrize("way", range(len(WAYS)))
@pytest.mark.parametrize("n_read", [1, 2, 5, 12])
def test_all_pieces_are_those_without_a_pause(
    model: nextn.LanguageModel, way: int, n_read: int, tmp_path: Path
) -> None:
    want = [same(piece) for piece in model.stream(PROMPT, **WAYS[way])]
    stream = model.stream(PROMPT, **WAYS[way])
    found = list(islice(stream, n_read))
    for _ in range(3):
        if not stream.pause(tmp_path / "saved"):
            break
        found += stream
        assert found.pop() == nextn.Piece("", None, stop_reason="paused")
        stream = model.resume(tmp_path / "saved")
        found += islice(stream, n_read)
    found += stream
    assert [same(piece) for piece in found] == want


def test_it_goes_on_in_another_process(model: nextn.LanguageModel, tmp_path: Path) -> None:
    whole = model.generate(PROMPT, **LONG).text
    stream = model.stream(PROMPT, **LONG)
    text = next(stream).text
    assert stream.pause(tmp_path / "saved")
    text += "".join(piece.text for piece in stream)
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(tmp_path / "saved")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert text + done.stdout == whole
    assert done.stdout


def test_coroutines(model: nextn.LanguageModel, tmp_path: Path) -> None:
    path, options = tmp_path / "saved", LONG

    async def main() -> str:
        stream, text = model.astream(PROMPT, **options), ""
        with pytest.raises(nextn.NextnError, match="has not begun"):
            await stream.pause(path)
        async for piece in stream:
            if not text:
                assert await stream.pause(path)
            text += piece.text
        assert not await stream.pause(path)
        async for piece in model.aresume(path):
            text += piece.text
        return text

    assert asyncio.run(main()) == model.generate(PROMPT, **options).text


def test_what_has_not_begun_or_has_ended(model: nextn.LanguageModel, tmp_path: Path) -> None:
    stream = model.stream(PROMPT, max_tokens=3, ignore_eos=True)
    with pytest.raises(nextn.NextnError, match="has not begun"):
        stream.pause(tmp_path / "saved")
    assert len(list(stream)) == 3
    assert not stream.pause(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_file_that_cannot_be_written_ends_nothing(
    model: nextn.LanguageModel, tmp_path: Path
) -> None:
    want = model.generate(PROMPT, max_tokens=120, temperature=0.0).text
    stream = model.stream(PROMPT, max_tokens=120, temperature=0.0)
    text = next(stream).text
    with pytest.raises(nextn.NextnError, match="cannot be written"):
        stream.pause(tmp_path / "nowhere" / "saved")
    assert text + "".join(piece.text for piece in stream) == want


def test_a_stream_holds_its_model(tmp_path: Path) -> None:
    path = tmp_path / "saved"

    async def rest() -> str:
        return "".join([piece.text async for piece in nextn.load("nano").aresume(path)])

    stream = nextn.load("nano").stream(PROMPT, max_tokens=90, temperature=0.0)
    want = "".join(piece.text for piece in stream)
    stream = nextn.load("nano").stream(PROMPT, max_tokens=90, temperature=0.0)
    text = next(stream).text
    assert stream.pause(path)
    text += "".join(piece.text for piece in stream)
    assert text + "".join(piece.text for piece in nextn.load("nano").resume(path)) == want
    assert text + asyncio.run(rest()) == want


def test_files_that_do_not_fit(model: nextn.LanguageModel, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    with pytest.raises(nextn.NextnError, match="cannot be read"):
        model.resume(path)
    stream = model.stream(PROMPT, max_tokens=200, temperature=0.0)
    next(stream)
    assert stream.pause(path)
    stream.close()
    with nextn.load("nano", n_ctx=16) as small:
        resumed = small.resume(path)
        with pytest.raises(nextn.NextnError, match="give a larger n_ctx"):
            next(resumed)
    foreign = replace(SequenceSnapshot.load(path), model="of another file")
    foreign.save(path)
    with pytest.raises(nextn.NextnError, match="another model: load the file that wrote it"):
        next(model.resume(path))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(nextn.NextnError, match="checksum"):
        model.resume(path)
