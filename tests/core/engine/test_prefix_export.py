"""What a text that has ended left: saved, put into another cache, forgotten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.scripted import (
    PROMPT,
    SMALL,
    alone,
    assert_nothing_is_held,
    drain,
    made,
    make_engine,
    params,
)

from nextn.core.engine.engine import Engine
from nextn.core.errors import ConfigError, FileFormatError
from nextn.core.state.prefix_export import PrefixExport
from nextn.core.state.sizes import StateSizes
from nextn.core.state.snapshot import SequenceSnapshot

ROOMY = replace(SMALL, n_checkpoints=8)
LONG = [1, 2, 3, 4, 5, 6, 7, 8, 9] * 2


def written(
    prompt: list[int] = LONG, *, hybrid: bool = True, sizes: StateSizes = ROOMY, **config: Any
) -> tuple[Engine, list[int]]:
    engine = make_engine(hybrid=hybrid, sizes=sizes, **config)
    text = engine.add(prompt, params(9, ignore_eos=True))
    drain(engine)
    return engine, text.tokens


def saved(engine: Engine, tokens: list[int]) -> SequenceSnapshot:
    found = engine.save_prefix(tokens)
    assert found is not None
    return found.joined()


def restore(engine: Engine, snapshot: SequenceSnapshot) -> int:
    return engine.load_prefix(PrefixExport.split(snapshot))


def ask(engine: Engine, prompt: list[int]) -> int:
    """How much of it was there; its text is checked."""
    text = engine.add(prompt, params(5))
    drain(engine)
    assert made(text) == alone(prompt, params(5), engine)
    assert_nothing_is_held(engine)
    return text.stats.cached_n


@pytest.mark.parametrize("batch_invariant", [True, False])
@pytest.mark.parametrize("hybrid", [False, True])
def test_another_engine_goes_on(hybrid: bool, batch_invariant: bool, tmp_path: Path) -> None:
    first, tokens = written(hybrid=hybrid, batch_invariant=batch_invariant)
    saved(first, tokens).save(tmp_path / "saved")
    second = make_engine(
        hybrid=hybrid, sizes=replace(SMALL, n_checkpoints=8), batch_invariant=batch_invariant
    )
    for other in ([7, 7], [9] * 9):  # so that it gets other pages and slots
        ask(second, other)
    n = restore(second, SequenceSnapshot.load(tmp_path / "saved"))
    assert n == (len(tokens) - 1 if batch_invariant else 16)
    assert_nothing_is_held(second)
    assert ask(second, [*tokens, 3, 1]) == n
    assert ask(first, [*tokens, 3, 1]) == n


def test_the_states_on_the_way_come_along() -> None:
    """The same prompt once more, without its answer."""
    first, tokens = written()
    second = make_engine(hybrid=True, sizes=ROOMY)
    restore(second, saved(first, tokens))
    assert ask(second, LONG) == ask(first, LONG) == 16


def test_what_two_files_share_is_there_once() -> None:
    first, tokens = written(hybrid=False)
    other = first.add([*LONG[:16], 40, 41], params(2))
    drain(first)
    second = make_engine(sizes=ROOMY)
    for text in (tokens, other.tokens):
        restore(second, saved(first, text))
        restore(second, saved(first, text))
    assert second.store.pool.n_idle == first.store.pool.n_idle
    assert ask(second, [*other.tokens, 1]) == ask(first, [*other.tokens, 1])


def test_saved_what_was_restored() -> None:
    first, tokens = written()
    snapshot = saved(first, tokens)
    second = make_engine(hybrid=True, sizes=ROOMY)
    restore(second, snapshot)
    assert saved(second, tokens).to_bytes() == snapshot.to_bytes()


def test_nothing_is_left() -> None:
    engine, tokens = written()
    assert engine.save_prefix([50, 51, 52]) is None
    assert engine.save_prefix(tokens[:10]) is None  # pages, but no state to go on from
    assert saved(engine, [*tokens[:19], 50, 50]).n_cells == 16


@pytest.mark.parametrize("hybrid", [False, True])
def test_forgotten(hybrid: bool) -> None:
    engine, tokens = written(hybrid=hybrid)
    other = engine.add([*LONG[:16], 40, 41], params(2))
    drain(engine)
    engine.forget_prefix(tokens)
    assert engine.save_prefix(other.tokens) is not None
    assert ask(engine, [*other.tokens, 1]) == len(other.tokens) - 1
    engine.forget_prefix([*other.tokens, 1])
    engine.forget_prefix(tokens)
    assert ask(engine, [*tokens, 1]) <= 16
    engine, tokens = written(hybrid=hybrid)
    engine.forget_prefix(tokens)
    assert engine.save_prefix(tokens) is None
    assert engine.store.pool.n_idle == engine.store.slots.n_kept == 0
    assert ask(engine, [*tokens, 1]) == 0


def test_a_text_that_begins_alike_is_not_forgotten() -> None:
    engine, tokens = written(hybrid=False)
    other = [*tokens[:-3], 33, 33, 33, 33]
    ask(engine, other)
    engine.forget_prefix(tokens)
    n = ask(engine, [*other, 1])
    engine.forget_prefix(tokens)  # which is not there
    assert n == ask(engine, [*other, 1]) == len(other)


def test_who_is_written_is_not_disturbed() -> None:
    """Its pages are read on, and are there for others afterwards."""
    engine, tokens = written()
    text = engine.add([*tokens, 3], params(9, ignore_eos=True))
    engine.step()
    engine.forget_prefix(tokens)
    restore(engine, saved(written()[0], tokens))
    drain(engine)
    assert made(text) == alone([*tokens, 3], params(9, ignore_eos=True), engine)
    assert ask(engine, [*text.tokens, 1]) == len(text.tokens) - 1


def test_no_slot_is_free() -> None:
    engine, tokens = written()
    snapshot = saved(engine, tokens)
    for i in range(3):
        engine.add([i], params(9, ignore_eos=True))
    engine.step()
    with pytest.raises(ConfigError, match="no room"):
        restore(engine, snapshot)
    drain(engine)
    assert restore(engine, snapshot) == len(tokens) - 1


def test_few_states_can_be_kept() -> None:
    first, tokens = written(list(range(20)))
    second = make_engine(hybrid=True, sizes=replace(SMALL, n_checkpoints=1))
    n = restore(second, saved(first, tokens))
    assert n == len(tokens) - 1
    assert ask(second, [*tokens, 1]) == n


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_budget(hybrid: bool) -> None:
    """No more is kept than may be; what was used last stays."""
    engine, tokens = written(hybrid=hybrid, sizes=replace(ROOMY, kv_pages=60, max_idle=16))
    n = len(tokens) - 1
    for i in range(9):
        assert ask(engine, [*tokens, 1 + i % 2]) >= n
        ask(engine, [50 - i] * 5)
        assert engine.store.pool.n_idle <= 16
    assert engine.store.pool.n_evicted > 0
    assert ask(engine, [50] * 5 + [1]) == 0  # the first of the others went


def changed(**changes: Any) -> SequenceSnapshot:
    engine, tokens = written()
    snapshot = saved(engine, tokens)
    blobs = {k: v for k, v in (snapshot.blobs | changes.pop("more", {})).items() if v is not None}
    return replace(snapshot, **({"blobs": blobs} | changes))


def state(**changes: Any) -> dict[str, bytes]:
    engine, tokens = written()
    early = SequenceSnapshot.from_bytes(saved(engine, tokens).blobs["state.16"], "")
    return {"state.16": replace(early, **changes).to_bytes()}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "other"}, "another model"),
        ({"backend": "cpu"}, "another backend"),
        ({"window": 9}, "another window"),
        ({"tokens": np.full(27, 61, np.int32)}, "outside the vocabulary"),
        ({"tokens": np.ones(60, np.int32)}, "60 tokens.*context"),
        ({"image": {}}, "shape"),
        ({"n_cells": 3}, "shape"),
        ({"n_pending_accepted": 1, "image": {"cells": np.zeros(1)}}, "shape"),
        ({"more": {"kind": None}}, "not one that has ended"),
        ({"more": {"drafter cells.mtp": bytes(2)}}, "wrong counts of cells of mtp"),
        ({"more": {"drafter cells.mtp": b"\xff" * 14}}, "wrong counts of cells of mtp"),
        ({"more": {"state.8": b"?"}}, "state at 8: is not a saved sequence"),
        ({"more": state(model="other")}, "another model"),
        ({"more": state(image={})}, "shape"),
        ({"more": state(tokens=np.ones(40, np.int32), n_cells=39)}, "shape"),
        ({"more": state(tokens=np.ones(17, np.int32))}, "another text"),
    ],
)
def test_what_does_not_belong_here_is_refused(change: dict[str, Any], said: str) -> None:
    engine = make_engine(hybrid=True, sizes=ROOMY)
    with pytest.raises((ConfigError, FileFormatError), match=said):
        restore(engine, changed(**change))
    assert_nothing_is_held(engine)
    assert engine.store.pool.n_idle == engine.store.slots.n_kept == 0


def test_a_text_that_was_saved_on_its_way_is_no_leftover() -> None:
    engine = make_engine(hybrid=True, sizes=ROOMY)
    text = engine.add(PROMPT, params())
    engine.step()
    engine.step()
    with pytest.raises(FileFormatError, match="not one that has ended"):
        restore(engine, engine.snapshot(text))
    leftover, tokens = written()
    with pytest.raises(FileFormatError, match="no valid request"):
        engine.restore(saved(leftover, tokens))
