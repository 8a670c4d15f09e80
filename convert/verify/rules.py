"""The rules that files are judged by: what each is called, and how bad it is to break it."""

from __future__ import annotations

from difflib import get_close_matches
from enum import StrEnum
from typing import Final, NamedTuple

from ...core.errors import ConfigError
from ...core.gguf.printable import printable


class Severity(StrEnum):
    BROKEN = "broken"  # here: it does not run, or not as it should
    LLAMA_CPP = "broken in llama.cpp"  # which refuses the file, or aborts with it
    SUSPICIOUS = "suspicious"
    NOTE = "note"


class FileRule(NamedTuple):
    severity: Severity
    text: str  # of a file that breaks it
    stops_llama_cpp: bool = False  # of what is broken here: whether llama.cpp refuses it as well


_BROKEN, _THERE, _ODD, _NOTE = Severity
RULES: Final = {
    # Any file
    "file-unreadable": FileRule(_BROKEN, "no file of a known format, cut off, or damaged", True),
    "key-unreadable": FileRule(_BROKEN, "a key has another type, or a value it cannot have", True),
    "key-odd": FileRule(_ODD, "the same, in a file that is no model"),
    "headers-only": FileRule(_NOTE, "numbers were not read: only the header is here"),
    # Keys against tensors
    "block-count": FileRule(_BROKEN, "block_count is not the number of blocks", True),
    "block-empty": FileRule(_BROKEN, "a block has no tensors", True),
    "nextn-count": FileRule(_BROKEN, "nextn_predict_layers is not what MTP tensors say", True),
    "array-length": FileRule(_BROKEN, "a per-layer array has no entry for each block", True),
    "window-pattern": FileRule(_ODD, "sliding_window_pattern is short; the rest reads all"),
    "recurrent-layers": FileRule(_BROKEN, "a layer is not of the kind that keys say", True),
    "tensor-missing": FileRule(_BROKEN, "a tensor that the architecture needs is missing", True),
    "tensor-shape": FileRule(_BROKEN, "a tensor has another shape than keys say", True),
    "tensor-unused": FileRule(_BROKEN, "a tensor that the architecture does not use", True),
    "load-refused": FileRule(_BROKEN, "loading would refuse the file for another reason", True),
    # Tokenizer and template
    "vocabulary": FileRule(_BROKEN, "ids, kinds or scores of tokens do not fit", True),
    "token-ids": FileRule(_BROKEN, "the id of a special token is none of the vocabulary"),
    "tokenizer": FileRule(_BROKEN, "the tokenizer cannot be used", True),
    "template": FileRule(_BROKEN, "the chat template does not parse or render", True),
    "template-turns": FileRule(_BROKEN, "the chat template does not render two turns"),
    "template-message": FileRule(_BROKEN, "the chat template loses the last message"),
    "special-tokens": FileRule(_ODD, "no token ends a text, or begins one that has to begin so"),
    # MTP heads
    "head-incomplete": FileRule(_BROKEN, "the MTP head lacks a tensor", True),
    "head-key": FileRule(_BROKEN, "nextn_predict_layers promises a head that is not there", True),
    "head-dropped": FileRule(_ODD, "there was an MTP head once"),
    "head-kind": FileRule(_BROKEN, "an MTP block is recurrent", True),
    "head-shape": FileRule(_BROKEN, "a tensor of the head has another model's shape", True),
    "head-norms": FileRule(_BROKEN, "norms of the head lack the one that is added to them"),
    "head-norms-low": FileRule(_ODD, "norms of the head are as if they lacked that one"),
    "head-norms-high": FileRule(_ODD, "norms of the head are as if it had been added twice"),
    "head-coarse": FileRule(_ODD, "types too coarse to guess well"),
    "head-floats": FileRule(_ODD, "floats beside a quantised model: slow to read"),
    "head-copies": FileRule(_NOTE, "the head repeats a matrix of the model"),
    "head-count": FileRule(_ODD, "another number of MTP layers than the configuration says"),
    "head-swapped": FileRule(_ODD, "drafts are right only with parts of the head exchanged"),
    "head-hopeless": FileRule(_ODD, "a trial run accepted none of many drafted tokens"),
    # Numbers
    "numbers": FileRule(_BROKEN, "NaN, infinity, or weights that no training makes"),
    "numbers-zero": FileRule(_ODD, "a matrix is all zero"),
    "numbers-unread": FileRule(_NOTE, "very large parts were not searched for NaN"),
    "norms-quantised": FileRule(_BROKEN, "norms are quantised", True),
    "norms": FileRule(_BROKEN, "norms of the model lack the one that is added to them"),
    "decay": FileRule(_BROKEN, "a decay is positive: it has to be -exp(A_log)"),
    # llama.cpp
    "llama-key": FileRule(_THERE, "a key that llama.cpp needs is missing"),
    "llama-rope": FileRule(_THERE, "llama.cpp cannot turn heads by these keys"),
    "llama-tensor": FileRule(_THERE, "a tensor has a name or a form that llama.cpp does not read"),
    "llama-type": FileRule(_THERE, "a vector is not F32"),
    "llama-vocabulary": FileRule(_THERE, "llama.cpp cannot use the tokenizer"),
    "llama-heads": FileRule(_THERE, "more MTP blocks than llama.cpp runs"),
    "llama-layers": FileRule(_THERE, "layers are not of the kinds that llama.cpp's keys say"),
    "llama-width": FileRule(_THERE, "a tensor has another width than llama.cpp's key says"),
    "llama-gating": FileRule(_ODD, "llama.cpp guesses the wrong gating of experts"),
    "llama-idle": FileRule(_NOTE, "llama.cpp does not run this head"),
    # Drafters
    "drafter": FileRule(_BROKEN, "a drafter's file contradicts itself", True),
    "drafter-record": FileRule(_ODD, "what the drafter says of its training cannot be read"),
    "drafter-names": FileRule(_THERE, "a drafter in the names of another program"),
    "drafter-there": FileRule(_THERE, "llama.cpp refuses this drafter"),
    "drafter-worse": FileRule(_ODD, "llama.cpp drafts badly with it"),
    "drafter-kind": FileRule(_ODD, "a checkpoint of a drafter that is not converted"),
    "pair": FileRule(_BROKEN, "the drafter or head belongs to another model", True),
    "pair-layers": FileRule(_ODD, "the head is behind another number of layers"),
    "pair-poor": FileRule(_ODD, "the drafter drafted badly for this model"),
    "pair-large": FileRule(_ODD, "a draft model that is too large to be faster"),
    "pair-translated": FileRule(_NOTE, "drafts are translated between vocabularies"),
    # Vision towers
    "mmproj": FileRule(_BROKEN, "a vision tower is incomplete or contradicts itself", True),
    "mmproj-kind": FileRule(_NOTE, "a tower that is not run here"),
    # Checkpoints
    "checkpoint-files": FileRule(_BROKEN, "the index names tensors that no file has"),
    "checkpoint-tensor": FileRule(_BROKEN, "a tensor is missing, left over or misshapen"),
    "checkpoint-config": FileRule(
        _BROKEN, "config.json has a value that cannot be, or is not converted"
    ),
    "checkpoint-part": FileRule(_NOTE, "no whole model"),
    "checkpoint-tokenizer": FileRule(_ODD, "no tokenizer"),
    # Trial runs
    "run": FileRule(_BROKEN, "the file cannot be loaded or run"),
    "run-lossless": FileRule(_BROKEN, "drafts change the text"),
}


def check_rule_names(names: list[str]) -> None:
    for name in names:
        if name not in RULES:
            near = get_close_matches(name, RULES, 1)
            hint = f"did you mean {near[0]}?" if near else "docs/convert.md has the list"
            raise ConfigError(f"--ignore {printable(name)}: no such rule; {hint}")
