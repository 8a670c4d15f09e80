"""Training documents: whole files, and shares of what is short, fill-in, and chat.

Files are most of it. Definitions alone teach it to begin as prompts do, with a header, and to end
behind the last line of a body; short files do the same for imports and scripts. Fill-in and chat
examples are few, enough to answer in form.

A prompt often ends behind a newline or an indentation, which are one token with each other or with
what follows; so some documents are encoded in two pieces that meet there.
"""

from __future__ import annotations

import ast
import random
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from .docstrings import Documented, first_sentence, parsed, with_short_docstrings
from .nano_vocabulary import (
    END_OF_TEXT,
    FIM_MIDDLE,
    FIM_PREFIX,
    FIM_SUFFIX,
    IM_END,
    IM_START,
    SPECIALS,
    NanoVocabulary,
)

Tokens = NDArray[np.uint16]

DEFINITION_SHARE, SHORT_SHARE, FIM_SHARE, CHAT_SHARE = 0.8, 0.1, 0.02, 0.04  # of files' tokens
DEFINITION_CHARS = (60, 2500)
SHORT_CHARS = (200, 2500)  # of a file that is an example of its own
CUT_SHARE = 0.4  # of definitions and short files, encoded in two pieces
WITH_DOCSTRING = 3.0  # times as likely to be taken as a definition without one
METHOD = 0.4  # times as likely as a function; what is typed first has no class around it
WHOLE_LINES = 0.8  # of the middles that are filled in
FIM_CHARS = 1500  # of a piece of a file that is to be filled in
BATCH = 256  # texts that are encoded at once

_REQUESTS = (
    "Write a function `{name}`: {summary}",
    "Write a Python function. {summary}",
    "Implement `{name}`. {summary}",
)
_QUESTIONS = ("What does `{name}` do?", "Explain `{name}`.")


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    source: str
    summary: str  # first sentence of the docstring, or nothing
    is_function: bool
    is_method: bool = False

    @property
    def weight(self) -> float:
        """How often it is taken, against others."""
        return (WITH_DOCSTRING if self.summary else 1.0) * (METHOD if self.is_method else 1.0)


@dataclass(frozen=True, slots=True)
class SampleLibrary:
    """Files, help topics, functions and classes that samples are made of."""

    files: list[str]
    short: list[str]  # of the files
    topics: list[str]
    definitions: list[Definition]
    weights: list[float]  # of the definitions, summed up
    explained: list[Definition]  # functions with a docstring

    @classmethod
    def of(cls, files: Sequence[str], topics: Sequence[str] = ()) -> SampleLibrary:
        readable = [text for text in files if not any(token in text for token in SPECIALS)]
        found = {d.source: d for text in readable for d in definitions_of(text)}
        definitions = list(found.values())
        weights = list(accumulate(d.weight for d in definitions))
        explained = [d for d in definitions if d.is_function and d.summary]
        least, most = SHORT_CHARS
        short = [text for text in readable if least <= len(text) <= most]
        return cls(readable, short, list(topics), definitions, weights, explained)


def definitions_of(text: str) -> Iterator[Definition]:
    """Functions, methods and classes at the left margin; none of a file that does not parse."""
    short = with_short_docstrings(text)
    tree = parsed(short)
    lines = short.splitlines(keepends=True)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, Documented):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            source = textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip() + "\n"
            if DEFINITION_CHARS[0] <= len(source) <= DEFINITION_CHARS[1]:
                summary = first_sentence(ast.get_docstring(node) or "")
                is_function = not isinstance(node, ast.ClassDef)
                yield Definition(node.name, source, summary, is_function, _is_method(node))


def _is_method(node: Documented) -> bool:
    if isinstance(node, ast.ClassDef):
        return False
    return [argument.arg for argument in node.args.args[:1]] in (["self"], ["cls"])


Maker = Callable[[random.Random, SampleLibrary], str]


def epoch(
    library: SampleLibrary, vocabulary: NanoVocabulary, files: list[Tokens], seed: str
) -> Tokens:
    """Everything once, in an order of its own: documents with an end token after each."""
    rng = random.Random(seed)
    documents = [*files, *encode(vocabulary, library.topics)]
    n_file_tokens = sum(map(len, files))
    makers: list[tuple[float, Maker, float]] = [
        (DEFINITION_SHARE, lone_definition, CUT_SHARE),
        (SHORT_SHARE if library.short else 0.0, short_file, CUT_SHARE),
        (FIM_SHARE, fill_in, 0.0),
        (CHAT_SHARE, chat, 0.0),
    ]
    for share, make, cut_share in makers:
        n_tokens = int(share * n_file_tokens)
        documents += _fill(library, vocabulary, make, rng, n_tokens, cut_share)
    rng.shuffle(documents)
    end = np.array([vocabulary.id_of(END_OF_TEXT)], np.uint16)
    return np.concatenate([part for document in documents for part in (document, end)])


def encode(vocabulary: NanoVocabulary, texts: Sequence[str]) -> list[Tokens]:
    return [np.array(ids, np.uint16) for ids in vocabulary.encode(texts)]


def _fill(
    library: SampleLibrary,
    vocabulary: NanoVocabulary,
    make: Maker,
    rng: random.Random,
    n_tokens: int,
    cut_share: float,
) -> list[Tokens]:
    made: list[Tokens] = []
    while library.explained and n_tokens > 0:
        texts = [make(rng, library) for _ in range(BATCH)]
        cuts = [cut_of(rng, text) if rng.random() < cut_share else 0 for text in texts]
        for tokens in encode_cut(vocabulary, texts, cuts):
            if n_tokens > 0:
                made.append(tokens)
            n_tokens -= len(tokens)
    return made


def encode_cut(
    vocabulary: NanoVocabulary, texts: Sequence[str], cuts: Sequence[int]
) -> Iterator[Tokens]:
    """Each in two pieces, of which the first has so many characters, perhaps none."""
    pairs = zip(texts, cuts, strict=True)
    encoded = encode(vocabulary, [part for text, n in pairs for part in (text[:n], text[n:])])
    for before, behind in zip(encoded[::2], encoded[1::2], strict=True):
        yield np.concatenate([before, behind])


def cut_of(rng: random.Random, text: str) -> int:
    """Behind a newline, or behind the indentation there; 0 in a single line."""
    line_ends = [found.end() for found in re.finditer("\n", text[:-1])]
    if not line_ends:
        return 0
    end = rng.choice(line_ends)
    if rng.random() < 0.5:
        return end
    return end + len(text[end:]) - len(text[end:].lstrip(" "))


def lone_definition(rng: random.Random, library: SampleLibrary) -> str:
    return rng.choices(library.definitions, cum_weights=library.weights)[0].source


def short_file(rng: random.Random, library: SampleLibrary) -> str:
    return rng.choice(library.short)


def fill_in(rng: random.Random, library: SampleLibrary) -> str:
    """Prefix, suffix, then the middle, cut at any three characters of a piece of a file.

    Most middles end with a line: an end of text within a line is rare, as in other documents.
    """
    text = rng.choice(library.files)
    start = rng.randrange(max(1, len(text) - FIM_CHARS // 2))
    piece = text[start : start + FIM_CHARS]
    a, b = sorted(rng.randrange(len(piece) + 1) for _ in range(2))
    b = min(b, a + FIM_CHARS // 3)
    if rng.random() < WHOLE_LINES:
        b = piece.find("\n", b) + 1 or len(piece)
    prefix, middle, suffix = piece[:a], piece[a:b], piece[b:]
    return f"{FIM_PREFIX}{prefix}{FIM_SUFFIX}{suffix}{FIM_MIDDLE}{middle}"


def chat(rng: random.Random, library: SampleLibrary) -> str:
    function = rng.choice(library.explained)
    if rng.random() < 0.6:
        question, answer = rng.choice(_REQUESTS), function.source.rstrip()
    else:
        question, answer = rng.choice(_QUESTIONS), function.summary
    return as_chat(question.format(name=function.name, summary=function.summary), answer)


def as_chat(question: str, answer: str) -> str:
    return f"{IM_START}user\n{question}{IM_END}\n{IM_START}assistant\n{answer}{IM_END}\n"
