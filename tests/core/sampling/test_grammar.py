"""Grammars on a sampler: only what is allowed, the same text with drafts, hostile sources."""

from __future__ import annotations

import builtins
import itertools
import json
import threading
import time
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.vocab import EOS_ID, N_VOCAB, tokenizer_metadata

from nextn.core.errors import ConfigError, FileFormatError, MissingDependencyError
from nextn.core.sampling import grammar as module
from nextn.core.sampling.grammar import Grammar, Grammars, run_limited
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.tokenizer.tokenizer import Tokenizer
from nextn.core.tokenizer.tokenizer_loading import load_tokenizer

pytest.importorskip("llguidance")

ARITHMETIC = """
root ::= sum "\\n"
sum  ::= term ([-+] term)*
term ::= [0-9]+ | "(" sum ")"
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["the", "and", "other"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@cache
def tokenizer() -> Tokenizer:
    return load_tokenizer(tokenizer_metadata())


@cache
def grammars() -> Grammars:
    return Grammars(tokenizer())


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special=False, parse_special=False)


def fits(grammar: Grammar, text: str) -> bool:
    tokens = encode(text)
    return grammar.validate(tokens) == len(tokens) and grammar.restart(tokens).is_complete


def logits_at(position: int) -> NDArray[np.float32]:
    row = np.random.default_rng([3, position]).normal(0, 3, N_VOCAB).astype(np.float32)
    row[EOS_ID] += 4
    return row


def write(sampler: Sampler, limit: int = 300) -> list[int]:
    tokens: list[int] = []
    while len(tokens) < limit and (not tokens or tokens[-1] not in tokenizer().eog_ids):
        tokens.append(sampler.pick(logits_at(len(tokens)), tokens, len(tokens)))
        sampler.accept(tokens[-1])
    return tokens


def sampler_of(grammar: Grammar, **how: Any) -> Sampler:
    return Sampler(SamplingParams(**how), n_vocab=N_VOCAB, grammar=grammar)


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ("1+2\n", True),
        ("(1-(20+3))-4\n", True),
        ("1+\n", False),
        ("(1\n", False),
        ("1", False),
        ("1\n1", False),
        ("", False),
        ("(((((7)))))\n", True),
    ],
)
def test_gbnf_arithmetic(text: str, is_valid: bool) -> None:
    assert fits(grammars().from_gbnf(ARITHMETIC), text) == is_valid


@pytest.mark.parametrize(
    ("text", "is_valid"),
    [
        ('{"name":"x","age":7,"tags":[]}', True),
        ('{ "name": "é\\n", "age": 150, "tags": ["the", "and"] }', True),
        ('{"name":"x","age":151,"tags":[]}', False),
        ('{"name":"x","age":07,"tags":[]}', False),
        ('{"name":"x","age":7}', False),
        ('{"name":"x","age":7,"tags":["them"]}', False),
        ('{"name":"x","age":7,"tags":[],"more":1}', False),
        ('{"name":"' + "x" * 13 + '","age":7,"tags":[]}', False),
        ('{"name":"x","age":7,"tags":["the","the","the","the"]}', False),
    ],
)
def test_json_schema(text: str, is_valid: bool) -> None:
    assert fits(grammars().from_json_schema(SCHEMA), text) == is_valid
    assert fits(grammars().from_json_schema(json.dumps(SCHEMA)), text) == is_valid


def test_blanks_are_bounded() -> None:
    grammar = grammars().json_object()
    assert fits(grammar, '{ "a":\n\n\t\t[1, 2] }')
    assert not fits(grammar, "{  }")
    assert not fits(grammar, "{\n\n\n}")
    assert not fits(grammar, "[]")
    assert not fits(grammar, ' {"a":1}')


def test_ends_only_where_the_text_is_complete() -> None:
    grammar = grammars().from_gbnf('root ::= "ab" "c"?')
    ending = tokenizer().eog_ids
    masks = []
    for token in [*encode("a"), *encode("b"), *encode("c")]:
        masks.append(set(np.flatnonzero(grammar.mask(np.zeros(N_VOCAB, np.float32)) > -np.inf)))
        assert (masks[-1] & ending == ending) == grammar.is_complete
        grammar.accept(token)
    assert [bool(mask & ending) for mask in masks] == [False, False, True]
    assert set(np.flatnonzero(grammar.mask(np.zeros(N_VOCAB, np.float32)) > -np.inf)) == ending
    assert not grammar.is_ended
    grammar.accept(EOS_ID)
    assert grammar.is_ended
    assert grammar.validate([EOS_ID]) == 0


def test_a_draft_may_end_the_text_but_not_go_on() -> None:
    grammar = grammars().from_gbnf('root ::= "ab" "c"*')
    a, b, c = (encode(letter)[0] for letter in "abc")
    for draft, n_valid in [
        ([a, b, EOS_ID], 3),
        ([a, b, EOS_ID, c], 3),
        ([a, b, c, c, EOS_ID, EOS_ID], 5),
        ([a, EOS_ID], 1),
        ([EOS_ID], 0),
        ([a, b, a], 2),
        ([], 0),
    ]:
        assert grammar.validate(draft) == n_valid
        assert grammar.accepted == []


@pytest.mark.parametrize("make", ["gbnf", "schema", "object"])
def test_the_mask_and_the_check_of_one_token_agree(make: str) -> None:
    """For every token, at every place of some texts: the greedy short cut relies on it."""
    grammar = _make(make)
    rng = np.random.default_rng(5)
    for _ in range(30):
        mask = grammar.mask(np.zeros(N_VOCAB, np.float32)) == 0
        assert mask.tolist() == [grammar.allowed(token) for token in range(N_VOCAB)]
        token = int(rng.choice(np.flatnonzero(mask)))
        if token in tokenizer().eog_ids:
            break
        grammar.accept(token)


def _make(make: str) -> Grammar:
    if make == "gbnf":
        return grammars().from_gbnf(ARITHMETIC)
    return grammars().from_json_schema(SCHEMA) if make == "schema" else grammars().json_object()


@pytest.mark.parametrize("heat", [0.0, 0.8, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_every_text_that_ends_is_valid(heat: float, seed: int) -> None:
    tokens = write(sampler_of(grammars().from_json_schema(SCHEMA), temperature=heat, seed=seed))
    assert tokens[-1] in tokenizer().eog_ids
    found = json.loads(tokenizer().decode(tokens[:-1]))
    assert set(found) == {"name", "age", "tags"}
    assert 0 <= found["age"] <= 150


def test_greedy_takes_the_best_token_that_is_allowed() -> None:
    sampler = sampler_of(grammars().from_gbnf(ARITHMETIC), temperature=0.0)
    assert not sampler.is_greedy
    for position in range(20):
        row = logits_at(position)
        assert sampler.grammar is not None
        wanted = int(sampler.grammar.mask(row).argmax())
        assert sampler.pick(row, (), position) == wanted
        if wanted in tokenizer().eog_ids:
            break
        sampler.accept(wanted)


@pytest.mark.parametrize("make", ["gbnf", "schema", "object"])
@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_drafts_never_change_the_text(make: str, heat: float) -> None:
    how: dict[str, Any] = {"temperature": heat, "repeat_penalty": 1.2, "seed": 3}
    plain = sampler_of(_make(make), **how)
    wanted = write(plain)
    sampler, tokens = sampler_of(_make(make), **how), list[int]()
    rng = np.random.default_rng(0)
    while len(tokens) < len(wanted):
        # Any tokens at all, some of them right; what the grammar refuses is cut off.
        n = int(rng.integers(0, 6))
        draft = wanted[len(tokens) : len(tokens) + n]
        draft = [int(rng.integers(N_VOCAB)) if rng.random() < 0.2 else t for t in draft]
        twin = sampler.copy()
        assert twin.grammar is not None
        draft = draft[: twin.grammar.validate(draft)]
        for token in draft:
            twin.accept(token)
        for row in range(len(draft) + 1):
            if len(tokens) == len(wanted):
                break
            tokens.append(sampler.pick(logits_at(len(tokens)), tokens, len(tokens)))
            sampler.accept(tokens[-1])
            if row == len(draft) or tokens[-1] != draft[row]:
                break
    assert tokens == wanted
    assert sampler.save() == plain.save()


def test_a_loaded_sampler_goes_on() -> None:
    sampler = sampler_of(grammars().from_json_schema(SCHEMA), seed=8)
    for position in range(9):
        sampler.accept(sampler.pick(logits_at(position), (), position))
    restored = sampler_of(grammars().from_json_schema(SCHEMA), seed=8)
    restored.load(sampler.save())
    for position in range(9, 30):
        token = sampler.pick(logits_at(position), (), position)
        assert restored.pick(logits_at(position), (), position) == token
        if token in tokenizer().eog_ids:
            break
        sampler.accept(token)
        restored.accept(token)
    with pytest.raises(FileFormatError, match="does not fit its grammar"):
        sampler_of(grammars().from_gbnf(ARITHMETIC)).load(sampler.save())
    with pytest.raises(FileFormatError, match="different kind"):
        Sampler(SamplingParams(), n_vocab=N_VOCAB).load(sampler.save())


def test_refused_tokens_do_not_break_the_matcher() -> None:
    grammar = grammars().from_gbnf(ARITHMETIC)
    for token in (*encode("x"), -1, N_VOCAB, 10**9, EOS_ID):
        assert not grammar.allowed(token)
        with pytest.raises(ValueError, match="does not allow"):
            grammar.accept(token)
    one = encode("1")
    assert grammar.validate([*one, *one, -1, *one]) == 2
    assert grammar.validate([*one, N_VOCAB]) == 1
    grammar.accept(one[0])
    assert grammar.accepted == one


def test_copies_are_independent() -> None:
    grammar = grammars().from_gbnf(ARITHMETIC)
    twin = grammar.copy()
    twin.accept(encode("(")[0])
    assert grammar.accepted == []
    assert grammar.allowed(encode("(")[0])
    assert not twin.is_complete


def test_control_tokens_are_no_text() -> None:
    grammar = grammars().from_gbnf("root ::= .*")
    mask = grammar.mask(np.zeros(N_VOCAB, np.float32)) == 0
    (start,) = tokenizer().encode("<|im_start|>", add_special=False)
    assert not mask[start]
    assert mask[EOS_ID]
    assert mask[encode("the")[0]]


def test_logits_may_be_wider_or_narrower_than_the_vocabulary() -> None:
    grammar = grammars().from_gbnf('root ::= "a"')
    (a,) = encode("a")
    for width in (a + 1, N_VOCAB - 100, N_VOCAB + 64):
        masked = grammar.mask(np.ones(width, np.float32))
        assert np.flatnonzero(masked > -np.inf).tolist() == [a]


def depth(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


CYCLE = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
HOSTILE_SCHEMAS = {
    "20000 deep": '{"a":' * 20_000 + "1" + "}" * 20_000,
    "20000 brackets": "[" * 20_000,
    "brackets that close first": "]" * 20_000 + "[" * 10,
    "61 deep": depth(61),
    "itself": {"$ref": "#"},
    "a circle": CYCLE,
    "1 MB": {"enum": ["x" * 1000] * 1000},
    "nowhere": {"$ref": "#/$defs/a"},
    "not JSON": '{"type": "strin',
    "a list": "[1]",
    "nothing": "",
    "no type": {"type": "strin"},
    "impossible": False,
    "too much arithmetic": {"type": "integer", "multipleOf": 10**9 + 7},
    "no expression": {"type": "string", "pattern": "^(a"},
    "half a character": {"const": "\ud800"},
    "not a number": {"const": float("nan")},
    "two documents": '{"type":"string"}\nfoo: "x"',
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_SCHEMAS)
def test_hostile_schemas_are_refused_quickly_in_one_line(name: str) -> None:
    grammars().json_object()  # the vocabulary is not part of the time
    start = time.thread_time()
    with pytest.raises(ConfigError) as refusal:
        grammars().from_json_schema(HOSTILE_SCHEMAS[name])  # type: ignore[arg-type]
    assert time.thread_time() - start < 2.5
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300


HARMLESS = {
    "long texts": {"type": "string", "maxLength": 10**9},
    "long lists": {"type": "array", "maxItems": 10**9, "items": {"type": "integer"}},
    "a catastrophic pattern": {"type": "string", "pattern": "^(a+)+$"},
    "a tree": {"type": "object", "properties": {"next": {"$ref": "#"}}},
    "deep enough": depth(25),
    "anything": True,
    "two to the forty": {
        "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
        | {"d40": {"type": "string"}},
        "$ref": "#/$defs/d0",
    },
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_only_looks_hostile_works(name: str) -> None:
    assert not grammars().from_json_schema(HARMLESS[name]).is_complete  # type: ignore[arg-type]


HOSTILE_GBNF = {
    "60000 parentheses": "root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000,
    "left recursion": 'root ::= root "a" | "b"',
    "many repeats": 'root ::= "a"{1,1000000000}',
    "1 MB": 'root ::= "' + "a" * 1_000_000 + '"',
    "a long chain": "root ::= r0\n"
    + "\n".join(f'r{n} ::= r{n + 1} "b"' for n in range(9000))
    + '\nr9000 ::= ""',
    "no rule": "root ::= missing",
    "empty": "",
}


@pytest.mark.parametrize("name", HOSTILE_GBNF)
def test_hostile_gbnf_is_refused_quickly_in_one_line(name: str) -> None:
    grammars().json_object()
    start = time.thread_time()
    with pytest.raises(ConfigError) as refusal:
        grammars().from_gbnf(HOSTILE_GBNF[name])
    assert time.thread_time() - start < 2.5
    assert "\n" not in str(refusal.value)


def test_nested_repeats_are_harmless() -> None:
    nested = grammars().from_gbnf('root ::= (("a"{1,9999}){1,9999} root? "b"){1,9999}')
    assert fits(nested, "aaab")


def test_work_that_takes_too_long_is_given_up() -> None:
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            continue

    with pytest.raises(ConfigError, match=r"takes more than 0\.05 s"):
        run_limited(work, 0.05)
    done.set()
    with pytest.raises(KeyError):
        run_limited(lambda: dict[str, int]()["x"], 5)


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clock of a thread")
def test_time_in_which_work_does_not_run_is_not_counted() -> None:
    """As beside busy processes."""
    wakes = threading.Event()
    timer = threading.Timer(0.2, wakes.set)
    timer.start()
    assert run_limited(lambda: wakes.wait(60), 0.02) is True


def test_the_latest_grammars_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Grammars(tokenizer())
    prepared: list[str] = []
    prepare = mine._prepare

    def counting(lark: Any) -> Any:
        prepared.append(lark())
        return prepare(lark)

    monkeypatch.setattr(mine, "_prepare", counting)
    monkeypatch.setattr(module, "MAX_CACHED", 2)
    for letter in "aabbacca":
        mine.from_gbnf(f'root ::= "{letter}"')
    assert len(prepared) == 3  # a, b, c; a was used after b, so c pushed b out
    mine.from_gbnf('root ::= "b"')
    assert len(prepared) == 4
    assert len(mine._prepared) == 2


def test_grammars_may_be_made_by_many_threads() -> None:
    found: list[bool] = []
    sources = itertools.cycle("abc")

    def work(letter: str) -> None:
        found.append(fits(grammars().from_gbnf(f'root ::= "{letter}" "x"'), f"{letter}x"))

    threads = [threading.Thread(target=work, args=(next(sources),)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 12


def test_without_llguidance_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fails(name: str, *more: Any, **options: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return real(name, *more, **options)

    monkeypatch.setattr(builtins, "__import__", fails)
    with pytest.raises(MissingDependencyError, match="pip install llguidance"):
        Grammars(tokenizer()).json_object()


def test_a_model_without_an_end_is_refused() -> None:
    class Endless:
        eog_ids: frozenset[int] = frozenset()

    with pytest.raises(ConfigError, match="no token that ends a text"):
        Grammars(Endless()).json_object()  # type: ignore[arg-type]
