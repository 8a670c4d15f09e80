"""Grammars that restrict the text: GBNF, JSON schema, any JSON object. llguidance does the work.

It is imported with the first grammar, and its view of the vocabulary is made then too (1.3 s for
152k tokens). Sources come from requests: their size and depth are checked before anything
recursive sees them, preparing them takes at most a set time, and what was prepared is kept in
memory only.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ConfigError, FileFormatError, MissingDependencyError
from .enforceable import enforceable, faulty_place
from .forms import PLACE, lark_of_forms
from .gbnf import MAX_CHARS, parse_gbnf
from .gbnf_lark import Deadline, to_lark
from .schemas import closed

if TYPE_CHECKING:
    from ..tokenizer import Tokenizer

MAX_SCHEMA_DEPTH: Final = 60
MAX_CACHED: Final = 32
MAX_NOTES: Final = 32
TIME_LIMIT_S: Final = 1.5  # of a thread's own time: a busy machine refuses no grammar
_WALL_LIMIT_S: Final = 30.0
_log: Final = logging.getLogger(__name__)
# llama.cpp's: without a bound, a model may write blanks for ever.
_BLANKS: Final = r" |\n{1,2}[ \t]{0,20}"
_SLASH: Final = re.compile(r"\\.|[/\n\r]", re.DOTALL)  # would end the expression or its line
_ESCAPED: Final = {"/": r"\/", "\n": r"\n", "\r": r"\r", "\\\n": r"\n", "\\\r": r"\r"}
_JSON_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*"?|[^"\[\]{}]+', re.DOTALL)


class Converted(NamedTuple):
    """A source in the syntax of llguidance."""

    lark: str
    notes: tuple[str, ...] = ()
    schemas: tuple[tuple[str, Any], ...] = ()  # in it, each with its name


Prepared = tuple[Any, tuple[str, ...]]  # a matcher and its notes


class Grammar:
    """Where one sequence is in its grammar.

    The matcher cannot take back a token that it has refused, so `accept` never shows it one:
    a draft is cut with `validate` first.
    """

    def __init__(
        self, fresh: Any, n_tokens: int, ending: frozenset[int], notes: Sequence[str] = ()
    ) -> None:
        """`notes`: what of its schemas it does not enforce, one line a keyword."""
        self._fresh = fresh  # never fed: what copies begin with
        self.notes = tuple(notes)
        self._matcher = fresh.deep_copy()
        self._n_tokens = n_tokens
        self._ending = ending
        self.accepted: list[int] = []

    @property
    def is_complete(self) -> bool:
        """The text may end here."""
        return bool(self._matcher.is_accepting())

    @property
    def is_ended(self) -> bool:
        """A token that ends the generation was accepted."""
        return bool(self.accepted) and self.accepted[-1] in self._ending

    def allowed(self, token: int) -> bool:
        return self.validate((token,)) == 1

    def validate(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may come next."""
        text = list(itertools.takewhile(self._is_text, tokens))
        if self.is_ended:
            return 0
        n_valid = int(self._matcher.validate_tokens(text)) if text else 0
        if n_valid < len(text) or n_valid == len(tokens) or tokens[n_valid] not in self._ending:
            return n_valid
        # The matcher's own check does not cover ends.
        after = self._matcher
        if text:
            after = after.deep_copy()
            after.consume_tokens(text)
        return n_valid + bool(after.is_accepting())

    def mask(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """A copy with -inf for everything but the tokens that may come next; those that end a
        generation are among them where the text is complete."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        _refuse_broken(self._matcher)
        allowed = np.unpackbits(bits, count=self._n_tokens, bitorder="little").view(np.bool_)
        allowed = allowed[: logits.size]
        masked = np.full_like(logits, -np.inf)
        np.copyto(masked[: allowed.size], logits[: allowed.size], where=allowed)
        return masked

    def accept(self, token: int) -> None:
        if not self.allowed(token):
            raise ValueError(f"the grammar does not allow token {token} here")
        if token not in self._ending:
            self._matcher.consume_token(token)
            _refuse_broken(self._matcher)
        self.accepted.append(token)

    def copy(self) -> Grammar:
        twin = Grammar.__new__(Grammar)
        twin.__dict__.update(self.__dict__)
        twin._matcher = self._matcher.deep_copy()
        twin.accepted = self.accepted.copy()
        return twin

    def restart(self, tokens: Sequence[int]) -> Grammar:
        """From the beginning, then through these tokens, which were saved once."""
        twin = Grammar(self._fresh, self._n_tokens, self._ending, self.notes)
        if twin.validate(tokens) < len(tokens):
            raise FileFormatError("the saved sampler state does not fit its grammar")
        for token in tokens:
            twin.accept(token)
        return twin

    def _is_text(self, token: int) -> bool:
        return 0 <= token < self._n_tokens and token not in self._ending


class Grammars:
    """Makes the grammars for one tokenizer, and remembers the latest ones. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, *, time_limit_s: float = TIME_LIMIT_S) -> None:
        self._tokenizer = tokenizer
        self._time_limit_s = time_limit_s
        self._vocabulary: Any = None
        self._lock = threading.Lock()  # of what was prepared: never held for long
        self._at_work = threading.Lock()  # one is prepared at a time
        self._prepared: OrderedDict[tuple[str, str], Prepared] = OrderedDict()

    def from_gbnf(self, text: str) -> Grammar:
        limit_s = self._time_limit_s
        return self._make("gbnf", text, lambda: Converted(_lark_of_gbnf(text, limit_s)))

    def from_json_schema(self, schema: str | dict[str, Any] | bool) -> Grammar:
        """`$ref` within the schema; what cannot be enforced is in the grammar's notes."""
        source = _checked_schema(schema)
        return self._make("json", source, lambda: _converted_schema(source))

    def from_regex(self, pattern: str) -> Grammar:
        """The whole text matches the pattern, in the syntax of Rust: without looking around."""
        if len(pattern) > MAX_CHARS:
            raise ConfigError(
                f"the regular expression has {len(pattern)} characters, at most {MAX_CHARS} may be"
            )
        return self._make("regex", pattern, lambda: Converted(_lark_of_regex(pattern)))

    def from_forms(self, source: str) -> Grammar:
        """What `write_forms` made."""
        if len(source) > MAX_CHARS:
            raise ConfigError(
                f"the tools' schemas have {len(source)} characters, at most {MAX_CHARS} may be"
            )
        for _, schema, _ in json.loads(source)["forms"]:
            _checked_schema(schema)
        return self._make("forms", source, lambda: _converted_forms(source))

    def json_object(self) -> Grammar:
        return self.from_json_schema({"type": "object"})

    def _make(self, kind: str, source: str, convert: Callable[[], Converted]) -> Grammar:
        found = self._find((kind, source))
        if found is None:
            with self._at_work:
                found = self._find((kind, source))
                if found is None:
                    found = self._prepare(convert)
                    if found[1]:
                        _log.warning("a JSON schema is followed in part: %s", "; ".join(found[1]))
            with self._lock:
                self._prepared[kind, source] = found
                if len(self._prepared) > MAX_CACHED:
                    self._prepared.popitem(last=False)
        fresh, notes = found
        return Grammar(fresh, self._tokenizer.n_vocab, self._tokenizer.eog_ids, notes)

    def _find(self, key: tuple[str, str]) -> Prepared | None:
        with self._lock:
            found = self._prepared.get(key)
            if found is not None:
                self._prepared.move_to_end(key)
            return found

    def _prepare(self, convert: Callable[[], Converted]) -> Prepared:
        """A matcher that has computed its first mask, which is where much of the work is done."""
        llguidance = import_llguidance()
        if self._vocabulary is None:
            self._vocabulary = build_vocabulary(llguidance, self._tokenizer)

        def work() -> Prepared:
            limits = llguidance.LLParserLimits(verbose_errors=False)
            made = convert()
            matcher = llguidance.LLMatcher(self._vocabulary, made.lark, log_level=0, limits=limits)
            if not matcher.is_error():
                matcher.compute_bitmask()
            elif made.schemas:
                _refuse_schemas(made.schemas)
            return matcher, made.notes

        matcher, notes = run_limited(work, self._time_limit_s)
        if matcher.is_error() and matcher.get_error().startswith("NoExtension"):
            raise ConfigError("the grammar allows no text at all")
        _refuse_broken(matcher)
        return matcher, notes


def import_llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise MissingDependencyError(
            "grammars and JSON schemas need llguidance: pip install llguidance"
        ) from None
    return llguidance


def run_limited(work: Callable[[], Any], limit_s: float) -> Any:
    """The result of `work`, or its exception. A thread cannot be stopped: one that takes too
    long is left alone, and ends by itself because the sources are limited."""
    outcome: list[Any] = []
    clock: list[int] = []

    def run() -> None:
        if hasattr(time, "pthread_getcpuclockid"):  # not on macOS and Windows
            clock.append(time.pthread_getcpuclockid(threading.get_ident()))
        try:
            outcome.extend((work(), None))
        except Exception as error:  # noqa: BLE001 - handed over, and raised below
            outcome.extend((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    began = time.monotonic()
    left = limit_s
    while left > 0 and thread.is_alive():
        thread.join(max(left, 0.01))
        elapsed = time.monotonic() - began
        used = _own_time(clock[0]) if clock else elapsed
        left = limit_s - used if elapsed < _WALL_LIMIT_S else 0.0
    if not outcome:
        raise ConfigError(f"the grammar is too complex: preparing it takes more than {limit_s:g} s")
    result, error = outcome
    if error is not None:
        raise error
    return result


def _own_time(clock: int) -> float:
    """Seconds that a thread has run; 0 if it has ended."""
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0


class _Spelling:
    """The methods of a tokenizer that llguidance calls."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer) -> None:
        ending = sorted(tokenizer.eog_ids)
        if not ending:
            raise ConfigError("this model has no token that ends a text, so grammars cannot end")
        self.eos_token_id = ending[0]
        count = range(tokenizer.n_vocab)
        self.tokens = [tokenizer.piece(token, show_special=True) for token in count]
        hidden = [token for token in count if self.tokens[token] and not tokenizer.piece(token)]
        self.special_token_ids = sorted({*hidden, *ending})

    def __call__(self, text: str | bytes) -> list[int]:
        """Not called, since no text is forced; it would only have to cut bytes."""
        raise NotImplementedError


def build_vocabulary(llguidance: Any, tokenizer: Tokenizer) -> Any:
    spelling = llguidance.TokenizerWrapper(_Spelling(tokenizer))
    return llguidance.LLTokenizer(spelling, eos_token=sorted(tokenizer.eog_ids))


def _lark_of_gbnf(text: str, limit_s: float) -> str:
    return to_lark(parse_gbnf(text), Deadline(limit_s))


def _converted_schema(source: str) -> Converted:
    schema, notes = enforceable(closed(json.loads(source)), _error_of_schema)
    return Converted(_lark_of_schema(schema, is_lenient=True), _some(notes), (("", schema),))


def _converted_forms(source: str) -> Converted:
    given = json.loads(source)
    notes, schemas = list[str](), []
    for form in given["forms"]:
        schema = form[1]
        name = schema.pop(PLACE, "") if isinstance(schema, dict) else ""
        form[1], more = enforceable(closed(schema), _error_of_schema)
        notes += [f"{name}{note}" for note in more]
        schemas.append((name, form[1]))
    return Converted(lark_of_forms(given, _BLANKS), _some(notes), tuple(schemas))


def _some(notes: Sequence[str]) -> tuple[str, ...]:
    n_more = len(notes) - MAX_NOTES
    return (*notes[:MAX_NOTES], *[f"{n_more} more keywords are not enforced"] * (n_more > 0))


def _lark_of_schema(schema: Any, *, is_lenient: bool) -> str:
    """`is_lenient`: keywords that are not known to llguidance are ignored."""
    if isinstance(schema, dict):
        extra = {"whitespace_pattern": _BLANKS, "lenient": is_lenient}
        schema = schema | {"x-guidance": extra}
    return f'%llguidance {{"no_forcing": true}}\nstart: %json {json.dumps(schema)}\n'


def _error_of_schema(schema: Any, *, is_lenient: bool = False) -> str:
    """What keeps llguidance from following it, in one line; empty: nothing."""
    lark = _lark_of_schema(schema, is_lenient=is_lenient)
    is_error, messages = import_llguidance().LLMatcher.validate_grammar_with_warnings(lark, None)
    if not is_error:
        return ""
    reason: str = messages[0].partition("\n   1 | ")[0]
    reason = reason.rpartition("JSON schema: ")[2].rpartition("\nerror: ")[2]
    return reason.partition("\n")[0]


def _refuse_schemas(schemas: Sequence[tuple[str, Any]]) -> None:
    """Names the place of what is wrong, if it is found."""
    for name, schema in schemas:
        place, error = faulty_place(schema, partial(_error_of_schema, is_lenient=True))
        if error:
            where = f"{name}{place}"
            raise ConfigError(f"the JSON schema cannot be followed at {where[:200]}: {error[:200]}")


def _lark_of_regex(pattern: str) -> str:
    pattern = _SLASH.sub(lambda found: _ESCAPED.get(found[0], found[0]), pattern)
    return f'%llguidance {{"no_forcing": true}}\nstart: /{pattern}/\n'


def _checked_schema(schema: object) -> str:
    """As compact JSON, of bounded size and depth."""
    if not isinstance(schema, str):
        _check_depth_of(schema)
        schema = json.dumps(schema)
    if len(schema) > MAX_CHARS:
        raise ConfigError(
            f"the JSON schema has {len(schema)} characters, at most {MAX_CHARS} may be"
        )
    depth = deepest = 0
    for mark in _JSON_TEXT.sub("", schema):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    if deepest > MAX_SCHEMA_DEPTH:
        _refuse_depth()
    try:
        parsed = json.loads(schema)
    except ValueError as error:
        raise ConfigError(f"the JSON schema is not JSON: {error}") from None
    if not isinstance(parsed, dict | bool):
        raise ConfigError("a JSON schema is an object, true or false")
    return json.dumps(parsed, separators=(",", ":"))


def _check_depth_of(value: object) -> None:
    level = [value]
    for _ in range(MAX_SCHEMA_DEPTH + 1):
        inside: list[object] = []
        for each in level:
            if isinstance(each, dict):
                inside += each.values()
            elif isinstance(each, list | tuple):
                inside += each
        if not inside:
            return
        level = inside
    _refuse_depth()


def _refuse_depth() -> None:
    raise ConfigError(f"the JSON schema nests deeper than {MAX_SCHEMA_DEPTH} levels")


def _refuse_broken(matcher: Any) -> None:
    if matcher.is_error():
        # The first line is the reason; the rest is an excerpt of the converted grammar.
        message = matcher.get_error().split("\n")[0]
        raise ConfigError(f"the grammar cannot be followed: {message[:200]}")
