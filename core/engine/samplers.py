"""One `Sampler` per sequence, from the parameters of its request."""

from __future__ import annotations

import math
from collections import OrderedDict
from threading import Lock
from typing import Final

from msgspec.structs import replace

from ..generation import GenerateParams
from ..sampling.dry import NO_BREAKERS, Breakers, find_breakers
from ..sampling.grammar import Grammar, Grammars
from ..sampling.min_length import MinLength
from ..sampling.params import SamplingParams, logit_biases
from ..sampling.sampler import Sampler
from ..sampling.thinking_budget import ThinkingBudget
from ..tokenizer import Tokenizer

_MAX_BREAKERS: Final = 16  # lists of DRY breakers that are remembered: each takes 0.1 s to look up


class SamplerMaker:
    """Thread-safe, so that samplers can be made before their sequence is queued."""

    def __init__(self, tokenizer: Tokenizer, n_vocab: int) -> None:
        self._tokenizer, self._n_vocab = tokenizer, n_vocab
        self._breakers: OrderedDict[tuple[str, ...], Breakers] = OrderedDict()
        self._grammars = Grammars(tokenizer)
        self._lock = Lock()

    def make(self, params: GenerateParams, index: int) -> Sampler:
        """`index` numbers the sequences of one request, which share a seed."""
        sampling = params.sampling
        if params.ignore_eos:
            bans = [(token, -math.inf) for token in self._tokenizer.eog_ids]
            sampling = replace(sampling, logit_bias=logit_biases([*sampling.logit_bias, *bans]))
        return Sampler(
            sampling,
            n_vocab=self._n_vocab,
            sequence=index,
            grammar=self._make_rule(params),
            breakers=self._find_breakers(sampling),
        )

    def _make_rule(self, params: GenerateParams) -> Grammar | None:
        grammar, limit = self._make_grammar(params), params.thoughts
        if limit is None:
            return grammar
        tokenizer = self._tokenizer
        message = tokenizer.encode(
            limit.message, add_special=False, parse_special=False, continues=True
        )
        mark = tokenizer.encode(limit.closing, add_special=False, continues=True)
        return ThinkingBudget(limit, [*message, *mark], tokenizer.piece, grammar)

    def _make_grammar(self, params: GenerateParams) -> Grammar | None:
        if params.grammar is not None:
            return self._grammars.from_gbnf(params.grammar)
        if params.json_schema is not None:
            return self._grammars.from_json_schema(params.json_schema)
        if params.regex is not None:
            return self._grammars.from_regex(params.regex)
        if params.forms is not None:
            return self._grammars.from_forms(params.forms)
        if params.min_tokens:
            return MinLength(params.min_tokens, self._tokenizer.eog_ids | set(params.stop_ids))
        return None

    def _find_breakers(self, sampling: SamplingParams) -> Breakers:
        texts = sampling.dry_sequence_breakers
        if not sampling.dry_multiplier or not texts:
            return NO_BREAKERS
        with self._lock:
            found = self._breakers.get(texts)
        if found is None:
            found = find_breakers(texts, self._tokenizer)
        with self._lock:
            self._breakers[texts] = found
            self._breakers.move_to_end(texts)
            if len(self._breakers) > _MAX_BREAKERS:
                self._breakers.popitem(last=False)
        return found
