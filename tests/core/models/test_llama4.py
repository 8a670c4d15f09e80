"""Llama 4: chunks far behind the first, on our side and llama.cpp's, and what cannot be run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.converting import convert
from support.hub_checkpoints import build_hub_checkpoint
from support.llama_cpp import LlamaCpp
from support.rewriting import rewritten
from support.running import Machine, Running, load, random_tokens
from support.tiny_models import TinyModel

from nextn.core.backend.interface import StateRoom
from nextn.core.backend.step import StepPart, build_step
from nextn.core.errors import ModelError
from nextn.core.models.llama4 import CHUNK
from nextn.core.models.model import block_input
from nextn.core.sampling.sampler import logprobs

Tiny = Callable[..., TinyModel]
N, N_PROBS, PAGE_LEN = 8, 48, 64
BANNED = (*range(128, 256), 509, 510, 511)  # `test_llama_cpp` says why


def test_three_of_four_layers_see_a_chunk(tiny: Tiny) -> None:
    for name, chunk in (("llama4", CHUNK), ("llama4-chunks", 12)):
        model, _ = load(tiny(name).path)
        assert [kv.window for kv in model.state_shape.kv] == [chunk, chunk, chunk, 0]


def far_logits(path: Path, tokens: list[int], n_out: int) -> Any:
    """Of the last rows, in pieces that do not end where chunks do."""
    model, backend = load(path, "cpu", 2)
    n_pages = -(-len(tokens) // PAGE_LEN)
    state = backend.new_state(
        model.state_shape, StateRoom(n_pages=n_pages, page_len=PAGE_LEN, n_slots=1, window=1)
    )
    run = backend.compile(model.forward, state, max_rows=300)
    rows = []
    for start in range(0, len(tokens), 300):
        piece = tokens[start : start + 300]
        part = StepPart(piece, start, range(n_pages), n_out=len(piece))
        rows.append(run(build_step([part])).logits.copy())
    return np.concatenate(rows)[-n_out:]


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.parametrize("n", [pytest.param(CHUNK - 1, marks=pytest.mark.exhaustive), CHUNK + 20])
def test_llama_cpp_changes_chunks_where_we_do(
    n: int, tiny: Tiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The next tokens of a prompt that ends before a chunk does, and of one that is in the second:
    queries of layers without rope grow from there on."""
    keys = {"llama4.context_length": 2 * CHUNK}
    path = rewritten(tiny("llama4").path, tmp_path / "m.gguf", keys)
    prompt = random_tokens(n, seed=4)
    with capfd.disabled(), LlamaCpp(path, n_ctx=CHUNK + 256) as peer:
        written = peer.greedy(prompt, N, n_probs=N_PROBS, banned=BANNED)
    ours = logprobs(far_logits(path, [*prompt, *written.tokens[:-1]], N))
    found = [
        abs(row[token] - value)
        for row, theirs in zip(ours, written.logprobs, strict=True)
        for token, value in theirs.items()
    ]
    assert len(found) == N * N_PROBS
    assert max(found) < 5e-3  # our cells are half floats


def test_a_row_knows_nothing_of_the_chunk_before(tiny: Tiny) -> None:
    """In the three layers with chunks; the fourth sees all."""
    model, backend = load(tiny("llama4-chunks").path)
    taps = [block_input(3), block_input(4)]
    tail, found = random_tokens(8, seed=3), []
    for seed in (1, 2):
        run = Running(Machine(model, backend, taps=frozenset(taps)))
        made = run.forward([*random_tokens(24, seed=seed), *tail]).taps
        found.append([made[tap] for tap in taps])
    assert np.array_equal(found[0][0][24:], found[1][0][24:])
    assert not np.array_equal(found[0][0][:24], found[1][0][:24])
    assert not np.array_equal(found[0][1][24:], found[1][1][24:])


def test_a_file_without_chunks_is_one_line(tiny: Tiny, tmp_path: Path) -> None:
    keys = {"llama4.attention.sliding_window": 0}
    path = rewritten(tiny("llama4").path, tmp_path / "m.gguf", keys)
    with pytest.raises(ModelError, match=re.escape("sliding_window is 0: Llama 4 without chunks")):
        load(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"no_rope_layers": [1, 1, 0, 1]}, "no_rope_layers are not those of GGUF's graph"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types are not those of GGUF's graph"),
        ({"moe_layers": [0, 1]}, "moe_layers are not those of GGUF's graph"),
        ({"use_qk_norm": False}, "use_qk_norm is False with 4 experts"),
        ({"num_local_experts": None}, "num_local_experts is missing"),
    ],
)
def test_what_gguf_cannot_say_is_not_converted(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    made = build_hub_checkpoint("llama4", tmp_path, as_saved=True)
    config = made.folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(ModelError, match=re.escape(said)):
        convert(made.folder, tmp_path / "out.gguf")
