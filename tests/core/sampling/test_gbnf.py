"""GBNF: what is read, what is refused, and that lexemes never change the language."""

from __future__ import annotations

import random

import pytest

from nextn.core.errors import ConfigError
from nextn.core.sampling.gbnf import (
    Chars,
    Choice,
    Concatenation,
    Name,
    Node,
    Repeat,
    Rules,
    parse_gbnf,
)
from nextn.core.sampling.gbnf_lark import Deadline, to_lark

llguidance = pytest.importorskip("llguidance")


def shown(node: Node) -> str:
    """Fully bracketed; character sets as their code points."""
    if isinstance(node, Chars):
        return "[" + ",".join(f"{a:x}" if a == b else f"{a:x}-{b:x}" for a, b in node.ranges) + "]"
    if isinstance(node, Name):
        return node.name
    if isinstance(node, Repeat):
        return f"({shown(node.part)}){{{node.low},{node.high}}}"
    joint = " " if isinstance(node, Concatenation) else "|"
    return f"({joint.join(map(shown, node.parts))})"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('"a"', "[61]"),
        ('"ab"', "([61] [62])"),
        ('""', "()"),
        ("", "()"),
        ('"a" |', "([61]|())"),
        ("[a-c]", "[61-63]"),
        ("[a-cx-]", "[61-63,78,2d]"),
        ("[-a]", "[2d,61]"),
        (r"[a\-c]", "[61,2d,63]"),
        ("[^b]", "[0-61,63-d7ff,e000-10ffff]"),
        (r'[^"\\\]]', "[0-21,23-5b,5e-d7ff,e000-10ffff]"),
        (".", "[0-d7ff,e000-10ffff]"),
        (r'"\n\t\r\\\"\[\]\x41\u00e9\U0001F600é"',
         "([a] [9] [d] [5c] [22] [5b] [5d] [41] [e9] [1f600] [e9])"),
        ('"a"*', "([61]){0,None}"),
        ('"a"+ "b"?', "(([61]){1,None} ([62]){0,1})"),
        ('"a"{3} "b"{ 2 , } "c"{0,5}', "(([61]){3,3} ([62]){2,None} ([63]){0,5})"),
        ('("a" | "b") "c" # comment', "(([61]|[62]) [63])"),
        ('"a"\n  "b"\n | "c"', "(([61] [62])|[63])"),
        ('"#" # "x"\n other', "([23] other)"),
    ],
)  # fmt: skip
def test_what_is_read(text: str, wanted: str) -> None:
    rules = parse_gbnf(f'# first\nroot ::= {text}\r\nother ::= "x"\nan-other_1::="y"\n')
    assert shown(rules["root"]) == wanted
    assert list(rules) == ["root", "other", "an-other_1"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no rule 'root'"),
        ('a ::= "x"', "no rule 'root'"),
        ("root ::= nothing", "no rule 'nothing'"),
        ('root ::= "a"\nroot ::= "b"', "line 2: .* is a rule that exists already"),
        ('root ::= "a', "cannot be read"),
        ("root ::= [a", "cannot be read"),
        ("root ::= <think>", "cannot be read"),
        ('root ::= "a" & "b"', "cannot be read"),
        ('"a"', "where a rule should begin"),
        ('root ::= ("a"', "parenthesis should be closed"),
        ('root ::= "a")', "where a rule should begin"),
        ("root ::= *", "where a rule should begin"),
        (r'root ::= "\q"', "escape"),
        (r'root ::= "\x4"', "escape"),
        (r'root ::= "\ud800"', "which is no character"),
        (r'root ::= "\U00110000"', "which is no character"),
        ("root ::= []", "set without a character"),
        ("root ::= [z-a]", "range that ends before it begins"),
        ('root ::= "a"{5,2}', "range that ends before it begins"),
        ('root ::= "a"{1,1000000000}', "repeats more than 10000 times"),
        ('root ::= "a"{99999999999999999999}', "where a rule should begin|cannot be read"),
        ('root ::= "a"***', "repeats a repeated repetition"),
        ("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000, "nests deeper than 64"),
        ('root ::= "' + "a" * 1_000_000 + '"', "1000011 characters, at most 262144"),
        ("root ::= " + '"a" ' * 60_000, "more than 50000 parts"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refusal:
        parse_gbnf(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 200


@pytest.mark.parametrize(
    "text",
    [
        'root ::= root "a" | "b"',
        'root ::= "b" | root',
        'root ::= empty root "a" | "b"\nempty ::= "x"*',
        "root ::= a\na ::= b\nb ::= a",
        'root ::= "x" a\na ::= (b | "y") "z"\nb ::= ("q"? a)+',
    ],
)
def test_left_recursion_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="left-recursive"):
        to_lark(parse_gbnf(text), Deadline(5))


def test_right_recursion_is_fine() -> None:
    assert to_lark(parse_gbnf('root ::= "a" root | "(" root ")" | ""'), Deadline(5))


def test_a_late_grammar_is_refused() -> None:
    with pytest.raises(ConfigError, match="takes more than -1 s"):
        to_lark(parse_gbnf('root ::= "a"'), Deadline(-1))


class Bytes:
    """A vocabulary of the 256 bytes and an end."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, (256,)
    tokens = (*(bytes([value]) for value in range(256)), b"</s>")

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError


VOCABULARY = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Bytes()), eos_token=[256])


def accepts(rules: Rules, texts: list[str]) -> list[bool]:
    lark = to_lark(rules, Deadline(20))
    fresh = llguidance.LLMatcher(VOCABULARY, lark, log_level=0)
    assert not fresh.is_error(), fresh.get_error() + lark
    found = []
    for text in texts:
        matcher, tokens = fresh.deep_copy(), list(text.encode())
        n = matcher.try_consume_tokens(tokens)
        found.append(n == len(tokens) and matcher.is_accepting())
    return found


def ends(rules: Rules, node: Node, text: str, start: int) -> set[int]:
    """Where a text of this node may end that begins at `start`: the naive definition."""
    if isinstance(node, Name):
        return ends(rules, rules[node.name], text, start)
    if isinstance(node, Chars):
        fits = start < len(text) and any(a <= ord(text[start]) <= b for a, b in node.ranges)
        return {start + 1} if fits else set()
    if isinstance(node, Choice):
        return {end for part in node.parts for end in ends(rules, part, text, start)}
    if isinstance(node, Concatenation):
        places = {start}
        for part in node.parts:
            places = {end for place in places for end in ends(rules, part, text, place)}
        return places
    places, found = {start}, {start} if node.low == 0 else set()
    for n in range(1, (node.low + len(text) + 1 if node.high is None else node.high) + 1):
        places = {end for place in places for end in ends(rules, node.part, text, place)}
        found |= places if n >= node.low else set()
    return found


def random_node(rng: random.Random, depth: int, names: list[str]) -> str:
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return rng.choice(['"a"', '"b"', '"c"', '"ab"', '"ba"', '"abc"', "[ab]", "[^a]", "[a-c]"])
    if kind < 0.4 and names:
        return rng.choice(names)
    if kind < 0.6:
        parts = [random_node(rng, depth - 1, names) for _ in range(rng.randint(1, 3))]
        return "(" + " | ".join(parts) + ")"
    if kind < 0.8:
        return f"{random_node(rng, depth - 1, names)} {random_node(rng, depth - 1, names)}"
    suffix = rng.choice(["*", "+", "?", "{2}", "{1,2}", "{0,2}", "{2,}", "{0,0}"])
    return f"({random_node(rng, depth - 1, names)}){suffix}"


def random_grammar(rng: random.Random) -> str:
    """Sometimes recursive; never to the left, since "a" comes first."""
    again = ""
    if rng.random() < 0.6:
        again = f'"a" {rng.choice(["root", "y", "x"])} {random_node(rng, 1, ["y"])} | '
    return (
        f"root ::= {random_node(rng, 3, ['x', 'y'])}\n"
        f"x ::= {again}{random_node(rng, 2, ['y'])}\n"
        f"y ::= {random_node(rng, 2, [])}\n"
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_language_is_that_of_the_definition(seed: int) -> None:
    rng = random.Random(seed)
    n_texts = n_split = 0
    for _ in range(150):
        source = random_grammar(rng)
        rules = parse_gbnf(source)
        texts = ["".join(rng.choices("abc", k=rng.randint(0, 7))) for _ in range(25)]
        wanted = [len(text) in ends(rules, rules["root"], text, 0) for text in texts]
        assert accepts(rules, texts) == wanted, source
        n_texts += sum(wanted)
        n_split += "\nr" in to_lark(rules, Deadline(20))
    assert n_texts > 200  # or the grammars would prove little
    assert n_split > 2


def test_lexemes_that_would_cut_wrongly_are_taken_apart() -> None:
    rules = parse_gbnf('root ::= ("a" | "ab") "bc" root?')
    assert accepts(rules, ["abc", "abbc", "abcabbc", "ab"]) == [True, True, True, False]
    words = parse_gbnf('root ::= word "s" ("(" root ")")?\nword ::= [a-z]+')
    assert accepts(words, ["cats", "cat", "ss", "dogs(cats)"]) == [True, False, True, True]


def test_lexemes_stay_whole_where_they_can() -> None:
    """Strings of a JSON grammar are one lexeme each, or masks would take a hundred times longer."""
    lark = to_lark(parse_gbnf(JSON), Deadline(5))
    assert lark.count("\nL") < 12
    assert lark.count("\nr") < 20
    texts = ['{"a b": [1, -2.5e3, {"c": null}], "d": "\\u00e9\\n"}', "[]", '{"a" 1}', "[1,]"]
    assert accepts(parse_gbnf(JSON), texts) == [True, True, False, False]


JSON = r"""
root   ::= object | array
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
"""
