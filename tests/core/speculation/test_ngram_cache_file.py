"""llama.cpp's file of n-grams and what follows them; files may be damaged or hostile."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.errors import ConfigError, FileFormatError, NextnError
from nextn.core.speculation.drafters import ngram_cache_file
from nextn.core.speculation.drafters.ngram_cache_file import load_counts, save_counts
from nextn.core.speculation.drafters.ngram_counts import MAX_N, GramCounts, pack

N_VOCAB = 100
GOOD = [1, 2, -1, -1, 2, 3, 1, 4, 7]
Items = dict[tuple[int, int, int], int]


def write(path: Path, words: list[int]) -> Path:
    path.write_bytes(struct.pack(f"<{len(words)}i", *words))
    return path


def items(counts: GramCounts) -> Items:
    return {
        (n, key, token): times for n in range(1, MAX_N + 1) for key, token, times in counts.items(n)
    }


def test_the_layout(tmp_path: Path) -> None:
    counts = load_counts(write(tmp_path / "cache", [*GOOD, 9, 8, 7, 6, 1, 5, 1]), N_VOCAB)
    pair, four = pack([1, 2]), pack([9, 8, 7, 6])
    assert items(counts) == {(2, pair, 3): 1, (2, pair, 4): 7, (4, four, 5): 1}
    save_counts(tmp_path / "again", counts)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "cache").read_bytes()


@given(
    st.dictionaries(
        st.lists(st.integers(0, N_VOCAB - 1), min_size=1, max_size=4).map(tuple),
        st.dictionaries(st.integers(0, N_VOCAB - 1), st.integers(1, 2**31 - 1), min_size=1),
    )
)
def test_saved_and_loaded(
    tmp_path_factory: pytest.TempPathFactory, grams: dict[tuple[int, ...], dict[int, int]]
) -> None:
    path, counts = tmp_path_factory.mktemp("cache") / "file", GramCounts()
    for gram, followers in grams.items():
        for token, times in followers.items():
            counts.add(len(gram), pack(gram), token, times)
    save_counts(path, counts)
    assert items(load_counts(path, N_VOCAB)) == items(counts)


def test_counts_that_no_file_can_hold_are_capped(tmp_path: Path) -> None:
    counts = GramCounts()
    counts.add(1, 5, 6, 2**40)
    save_counts(tmp_path / "cache", counts)
    assert items(load_counts(tmp_path / "cache", N_VOCAB)) == {(1, 5, 6): 2**31 - 1}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (GOOD[:-1], "damaged at byte 0: the record is cut off"),
        ([*GOOD, 1, 2, -1], "damaged at byte 36: the record is cut off"),
        ([1, 2, -1, -1, 0], "wrong length"),
        ([1, 2, -1, -1, -3, 1, 1], "wrong length"),
        ([1, 2, -1, -1, 2**31 - 1, 1, 1], "wrong length"),
        ([-1, -1, -1, -1, 1, 3, 1], "no tokens"),
        ([1, -1, 2, -1, 1, 3, 1], "-1 between"),
        ([1, -2, -1, -1, 1, 3, 1], "token negative"),
        ([1, 2, -1, -1, 1, -3, 1], "token negative"),
        ([1, 2, -1, -1, 1, 3, 0], "count is below 1"),
        ([1, N_VOCAB, -1, -1, 1, 3, 1], "token 100, but the vocabulary ends at 99"),
        ([1, 2, -1, -1, 1, N_VOCAB, 1], "made with another model"),
    ],
)
def test_b8_damaged_files_are_one_line(tmp_path: Path, words: list[int], message: str) -> None:
    path = write(tmp_path / "cache", words)
    with pytest.raises(FileFormatError, match=message) as caught:
        load_counts(path, N_VOCAB)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_b8_a_file_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    path.write_bytes(b"hello")
    with pytest.raises(FileFormatError, match="5 bytes are no whole number"):
        load_counts(path, N_VOCAB)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero")
def test_b8_a_file_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram_cache_file, "_MAX_BYTES", 1 << 20)
    with pytest.raises(ConfigError, match="cannot be read: it has more than 1 MiB"):
        load_counts(Path("/dev/zero"), N_VOCAB)


@given(st.lists(st.integers(-3, 9), max_size=30))
def test_b8_any_bytes(tmp_path_factory: pytest.TempPathFactory, words: list[int]) -> None:
    path = write(tmp_path_factory.mktemp("cache") / "file", words)
    try:
        counts = load_counts(path, N_VOCAB)
    except NextnError:
        return
    assert sum(items(counts).values()) > 0 or not words


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "cache", GOOD)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(NextnError, match="cache: cannot be written: No space left"):
        save_counts(path, GramCounts())
    assert [file.name for file in tmp_path.iterdir()] == ["cache"]
    assert load_counts(path, N_VOCAB).tables[2]
