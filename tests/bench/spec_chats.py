"""Chats of many turns, as they go through an engine with its defaults; with and without drafts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import nextn.core
from nextn.core import nano
from nextn.core.engine.engine import Engine
from nextn.core.generation import GenerateParams
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams

from .figures import Figure, spread
from .setup import Setup
from .spec_runs import AUTO, PLAIN, interleaved, new_engine, ratio
from .spec_workloads import held_out

CHATS, TURNS, N_REPLY, N_CTX = 10, 10, 96, 4096
ROUNDS, TEMPERATURE = 5, 0.7
N_QUOTED = 160  # characters of a held-out file in a question
NEVER_SLOWER = 0.97


@dataclass
class Side:
    """With drafts, or without. An engine of its own in each round: what it learns, and what it
    keeps of prompts, is from the chats of that round."""

    texts: dict[tuple[int, int], list[int]]  # by chat and turn
    seconds: dict[int, list[float]]  # of each chat, by round
    n_cached: int = 0


def chats(setup: Setup) -> list[Figure]:
    with nextn.core.load(nano.path(), "cpu", n_ctx=N_CTX, threads=setup.threads) as runtime:
        sides, rates = measure(runtime)
    plain, auto = sides["plain"], sides["auto"]
    ratios = [ratio(plain.seconds[chat], auto.seconds[chat]) for chat in range(CHATS)]
    detail = {name: spread(values) for name, values in rates.items()}
    n_tokens = sum(len(text) for text in plain.texts.values())
    return [
        Figure("all chats: auto / plain", ratio(rates["auto"], rates["plain"]), "x", NEVER_SLOWER,
               detail=detail),
        Figure("the slowest chat: auto / plain", min(ratios), "x", NEVER_SLOWER,
               detail={"of_each": ratios}),
        Figure("tokens of a reply", n_tokens / len(plain.texts)),
        Figure("all chats, plain", statistics.median(rates["plain"]), "tokens/s"),
    ]  # fmt: skip


def measure(
    runtime: Runtime, n_chats: int = CHATS, n_turns: int = TURNS, rounds: int = ROUNDS
) -> tuple[dict[str, Side], dict[str, list[float]]]:
    """Times from question to the end of the reply, prompts included. Texts have to be the same."""
    options = {"plain": PLAIN, "auto": AUTO}
    sides = {name: Side({}, {chat: [] for chat in range(n_chats)}) for name in options}

    def run(name: str, i: int) -> float:
        side, engine = sides[name], new_engine(runtime, options[name])
        n_made, seconds = 0, 0.0
        for chat in range(n_chats):
            replies, took, side.n_cached = hold_chat(runtime, engine, chat, n_turns)
            n_made, seconds = n_made + sum(map(len, replies)), seconds + took
            if i:
                side.seconds[chat].append(took)
            _compare(sides.values(), side, chat, replies)
        return n_made / seconds

    runs = {name: partial(run, name) for name in options}
    return sides, interleaved(runs, rounds)


def _compare(sides: Iterable[Side], side: Side, chat: int, replies: list[list[int]]) -> None:
    for turn, reply in enumerate(replies):
        side.texts[chat, turn] = reply
        for other in sides:
            if other.texts.get((chat, turn), reply) != reply:
                raise AssertionError(f"chat {chat}, turn {turn}: the texts differ")


def hold_chat(
    runtime: Runtime, engine: Engine, chat: int, n_turns: int
) -> tuple[list[list[int]], float, int]:
    """Replies, seconds, and tokens that the cache had of all prompts."""
    history: list[int] = []
    replies, seconds, n_cached = [], 0.0, 0
    for turn in range(n_turns):
        history += question(runtime, chat, turn)
        sampling = SamplingParams(temperature=TEMPERATURE, seed=1000 * chat + turn)
        params = GenerateParams(sampling, max_tokens=N_REPLY, owner=f"chat {chat}")
        start = time.perf_counter()
        sequence = engine.add(history, params)
        while engine.has_work:
            engine.step()
        seconds += time.perf_counter() - start
        replies.append(sequence.tokens[sequence.n_prompt :])
        n_cached += sequence.stats.cached_n
        history = list(sequence.tokens)
    return replies, seconds, n_cached


def question(runtime: Runtime, chat: int, turn: int) -> list[int]:
    """A piece of a held-out file, in the model's own form of a chat."""
    texts = held_out()
    text = texts[(chat + 3 * turn) % len(texts)]
    begin = 37 * turn % max(1, len(text) - N_QUOTED)
    quoted = text[begin : begin + N_QUOTED]
    return runtime.tokenizer.encode(
        f"<|im_start|>user\n{quoted}<|im_end|>\n<|im_start|>assistant\n", add_special=turn == 0
    )
