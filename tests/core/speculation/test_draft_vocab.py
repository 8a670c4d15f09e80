"""Which tokens a short draft head knows, and the counts that it is chosen by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.errors import ConfigError
from nextn.core.speculation.drafters.draft_vocab import (
    COVERED,
    ENOUGH_COUNTED,
    UNIT,
    check_option,
    choose_tokens,
)
from nextn.core.speculation.token_counts import TokenCounts

N_VOCAB = 4000


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPEC_TOKEN_COUNTS", raising=False)


NOTHING = np.zeros(N_VOCAB, np.int64)


def test_all_of_them() -> None:
    assert choose_tokens("full", N_VOCAB, NOTHING) is None
    assert choose_tokens("auto", N_VOCAB, NOTHING) is None
    assert choose_tokens(str(N_VOCAB), N_VOCAB, NOTHING) is None


def test_most_counted_first_then_lowest_ids() -> None:
    counts = NOTHING.copy()
    counts[[3000, 7, 3999]] = 5, 9, 2
    chosen = choose_tokens("5", N_VOCAB, counts)
    assert chosen is not None
    assert chosen.tolist() == [0, 1, 7, 3000, 3999]


@given(st.lists(st.tuples(st.integers(0, 1500), st.integers(1, 500)), min_size=1, max_size=400))
def test_auto_covers_what_was_written(pairs: list[tuple[int, int]]) -> None:
    counts = NOTHING.copy()
    for token, n in pairs:
        counts[token] += n
    chosen = choose_tokens("auto", N_VOCAB, counts)
    if counts.sum() < ENOUGH_COUNTED:
        assert chosen is None
        return
    assert chosen is not None
    assert len(chosen) % UNIT == 0
    assert (np.diff(chosen) > 0).all()
    assert counts[chosen].sum() >= COVERED * counts.sum()


def test_auto_leaves_a_head_alone_that_cannot_be_made_much_shorter() -> None:
    counts = np.full(N_VOCAB, ENOUGH_COUNTED, np.int64)
    assert choose_tokens("auto", N_VOCAB, counts) is None


def test_a_file_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids.txt"
    path.write_text("17 4\n4, 3999\n")
    chosen = choose_tokens(str(path), N_VOCAB, NOTHING)
    assert chosen is not None
    assert chosen.tolist() == [4, 17, 3999]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no token"),
        ("1 x", "'x', which is not a token id below 4000"),
        ("-1", "'-1'"),
        ("4000", "'4000'"),
        ("\0", "not a token id"),
        ("9" * 5000, "not a token id"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "ids.txt"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        choose_tokens(str(path), N_VOCAB, NOTHING)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "ids.bin"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not text"):
        choose_tokens(str(path), N_VOCAB, NOTHING)
    with pytest.raises(ConfigError, match="cannot be read"):
        choose_tokens(str(tmp_path), N_VOCAB, NOTHING)


@pytest.mark.parametrize("option", ["0", "-3", "many", "/no/such/file", "", "9" * 5000])
def test_options_that_mean_nothing(option: str) -> None:
    with pytest.raises(ConfigError, match="spec-draft-vocab"):
        check_option(option)


def test_counts_add_up_over_runs(tmp_path: Path) -> None:
    for _ in range(2):
        counts = TokenCounts("model", 10, tmp_path)
        counts.add([3] * 60 + [9] * 4)
        counts.save()
        counts.save()  # nothing new
    assert TokenCounts("model", 10, tmp_path).read().tolist() == [0, 0, 0, 120, 0, 0, 0, 0, 0, 8]
    assert not TokenCounts("other", 10, tmp_path).read().any()
    assert not TokenCounts("model", 11, tmp_path).read().any()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_few_tokens_are_not_worth_a_file(tmp_path: Path) -> None:
    counts = TokenCounts("model", 10, tmp_path)
    counts.add([1] * 5)
    counts.save()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("data", [b"", b"junk", b"spec token counts 1\n" + bytes(79)])
def test_a_damaged_file_is_no_counts(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.counts").write_bytes(data)
    counts = TokenCounts("model", 10, tmp_path)
    assert not counts.read().any()
    counts.add([2] * 100)
    counts.save()
    assert counts.read()[2] == 100


def test_none_are_kept_or_read_if_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = TokenCounts("another", 10, tmp_path)
    earlier.add([1] * 500)
    earlier.save()
    assert earlier.read().any()
    monkeypatch.setenv("SPEC_TOKEN_COUNTS", "0")
    assert not TokenCounts("another", 10, tmp_path).read().any()
    counts = TokenCounts("model", 10, tmp_path)
    counts.add([1] * 500)
    counts.save()
    assert [path.name for path in tmp_path.iterdir()] == ["another.counts"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    counts = TokenCounts("model", 10, tmp_path / "file" / "folder")
    counts.add([1] * 500)
    counts.save()
    assert not counts.read().any()
