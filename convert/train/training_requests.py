"""Requests that a target answers, so that its drafter learns from what it writes itself.

Half of the built-in ones are questions that the target asks itself (`own_questions.py`), the others
templates filled with topics, tasks and short made-up texts: thousands that differ. A model without
a chat template gets openings of texts and functions to continue.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from msgspec.structs import replace

from ...core.bench.prompt_files import parse_prompts, read_prompt_file
from ...core.bench.record import Prompt
from ...core.bench.workloads import built_in
from ...core.errors import ConfigError
from .opening_lines import OpeningLines
from .python_sources import default_library, training_texts

WORDS: Final = Path(__file__).with_name("training_requests.json")
OWN_QUESTION: Final = "own question"
SHARES: Final = {OWN_QUESTION: 0.5, "chat": 0.15, "code": 0.15, "summary": 0.1, "edit": 0.1}
CODE_EDITS: Final = 0.5  # of the edits
HELD_OUT_PART: Final = 8  # of the prompts of a file, one in so many is judged by
MOST_HELD_OUT: Final = 32
MOST_OPENED: Final = 400  # characters of a definition


class RequestSource(Protocol):
    name: str
    held_out: Sequence[Prompt]  # which are not among the requests

    @abstractmethod
    def request(self, i: int) -> Prompt:
        """The same one for the same `i`, from 0 on without an end. One of kind `OWN_QUESTION`
        stands in where the target asks nothing."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Equal where all requests are."""


class BuiltInRequests(RequestSource):
    """`is_chat`: for a model with a chat template."""

    name = "built-in"

    def __init__(self, seed: int, *, is_chat: bool) -> None:
        self._words: dict[str, list[str]] = json.loads(WORDS.read_text("utf-8"))
        self._seed, self._is_chat = seed, is_chat
        self.held_out = built_in("chat" if is_chat else "code").prompts

    @property
    def digest(self) -> str:
        key = f"{self._seed} {self._is_chat} {self._words} {SHARES}"
        return hashlib.sha256(key.encode()).hexdigest()

    def request(self, i: int) -> Prompt:
        rng = random.Random(f"request {self._seed} {i}")
        if not self._is_chat:
            kind = rng.choice(("code", "prose"))
            text = self._function(rng) if kind == "code" else self._article(rng, 2)
            return Prompt(str(i), kind, text=text)
        (kind,) = rng.choices(list(SHARES), list(SHARES.values()))
        text = self._chat(rng) if kind == OWN_QUESTION else getattr(self, f"_{kind}")(rng)
        return Prompt(str(i), kind, turns=(text,))

    def _pick(self, rng: random.Random, name: str) -> str:
        return rng.choice(self._words[name])

    def _chat(self, rng: random.Random) -> str:
        topic, other = rng.sample(self._words["topics"], 2)
        return self._pick(rng, "chat").format(topic=topic, other=other)

    def _code(self, rng: random.Random) -> str:
        language, task = self._pick(rng, "languages"), self._pick(rng, "tasks")
        return self._pick(rng, "code").format(language=language, task=task)

    def _summary(self, rng: random.Random) -> str:
        text = self._article(rng, rng.randint(4, 9))
        return self._pick(rng, "summary").format(text=text)

    def _edit(self, rng: random.Random) -> str:
        if rng.random() < CODE_EDITS:
            a, b = rng.sample(self._words["variables"], 2)
            code = self._pick(rng, "snippets").format(a=a)
            return self._pick(rng, "code_edit").format(a=a, b=b, code=code)
        text = self._article(rng, rng.randint(1, 4))
        return self._pick(rng, "edit").format(text=text, misspelled=_misspelled(text, rng))

    def _article(self, rng: random.Random, n: int) -> str:
        middles = rng.sample(self._words["middles"], n)
        lines = [self._pick(rng, "openings"), *middles, self._pick(rng, "endings")]
        place = self._pick(rng, "places")
        filled = [
            line.format(name=self._pick(rng, "names"), place=place, n=rng.randint(2, 40))
            for line in lines
        ]
        return " ".join(line[0].upper() + line[1:] for line in filled)

    def _function(self, rng: random.Random) -> str:
        if rng.random() < 0.5:
            code = self._pick(rng, "snippets").format(a=self._pick(rng, "variables"))
            return "".join(code.splitlines(keepends=True)[: rng.randint(1, 3)])
        task = self._pick(rng, "tasks")
        name = "_".join(re.findall(r"[a-z]+", task.lower())[:4])
        argument = self._pick(rng, "variables")
        return f'def {name}({argument}):\n    """Return what {task}."""\n'


class PythonRequests(RequestSource):
    """First lines of definitions of Python's library, for the bundled model."""

    name = "Python's library"

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._lines = OpeningLines.of(training_texts(default_library()))
        self.held_out = built_in("code").prompts

    @property
    def digest(self) -> str:
        key = f"{self._seed} {self._lines.definitions}"
        return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()

    def request(self, i: int) -> Prompt:
        rng = random.Random(f"request {self._seed} {i}")
        lines = self._lines.definition(rng).splitlines(keepends=True)
        return Prompt(str(i), "code", text="".join(lines[: rng.randint(1, 4)])[:MOST_OPENED])


class FileRequests(RequestSource):
    """Those of a user's file, again and again. One in `HELD_OUT_PART` is judged by alone."""

    def __init__(self, path: Path, *, is_chat: bool) -> None:
        self.name = path.name
        given = [_first_turn(prompt, is_chat=is_chat) for prompt in read_requests(path)]
        self.held_out = given[::-HELD_OUT_PART][:MOST_HELD_OUT] if len(given) > 1 else given
        judged = {prompt.id for prompt in self.held_out}
        self._trained = [prompt for prompt in given if prompt.id not in judged] or given

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self._trained).encode("utf-8", "replace")).hexdigest()

    def request(self, i: int) -> Prompt:
        return self._trained[i % len(self._trained)]


def read_requests(path: Path) -> Sequence[Prompt]:
    """As for bench-spec; of a plain text without lines of --- every line is a prompt."""
    if not path.is_file():
        raise ConfigError(f"--prompts: there is no file {path}")
    found = read_prompt_file(path)
    if len(found.prompts) > 1 or path.suffix.lower() in (".jsonl", ".ndjson", ".json"):
        return found.prompts
    lines = [line for line in found.prompts[0].text.splitlines() if line.strip()]
    return parse_prompts("\n---\n".join(lines), path.name, is_jsonl=False).prompts if lines else ()


def _first_turn(prompt: Prompt, *, is_chat: bool) -> Prompt:
    """As a message of a chat, or as a text to continue."""
    text = prompt.text or prompt.turns[0]
    if is_chat:
        return replace(prompt, text="", turns=(text,))
    return replace(prompt, text=text, turns=())


def _misspelled(text: str, rng: random.Random) -> str:
    """Some pairs of letters inside of words change places."""
    letters = list(text)
    for i in range(1, len(letters) - 2):
        if all(c.isalpha() for c in letters[i - 1 : i + 3]) and rng.random() < 0.04:
            letters[i], letters[i + 1] = letters[i + 1], letters[i]
    return "".join(letters)
