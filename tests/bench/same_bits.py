"""Whether two checkouts compute the same bits: hashes of logits and of generated tokens.

    python tests/bench/same_bits.py a.gguf b.gguf > before.json   # in one checkout's environment
    python tests/bench/same_bits.py a.gguf b.gguf > after.json    # in the other's
    diff before.json after.json

It uses few names of the core, so that it runs on any version that has them.
Without files it takes the bundled model.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Final

from nextn import core
from nextn.core import nano
from nextn.core.generation import GenerateParams
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams

_PROMPTS: Final = (
    "Once upon a time",
    "def add(a, b):\n    return",
    "one two three one two three one two three one two",
)
_SETTINGS: Final = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 0.9, "seed": 7},
}
_N_PREDICT: Final = 96


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _generated(model: Runtime, prompt: str, setting: dict[str, Any], plainly: bool) -> str:
    sampling = SamplingParams(**setting)
    params = GenerateParams(sampling, max_tokens=_N_PREDICT, ignore_eos=True)
    tokens = [event.token for event in model.generate(prompt, params, plainly=plainly)]
    return _hash(repr(tokens).encode())


def hashes(path: Path) -> dict[str, str]:
    """Return what the file's model computes, by name."""
    model = core.load(path, "cpu", threads=2)
    try:
        found: dict[str, str] = {}
        for i, prompt in enumerate(_PROMPTS):
            tokens = model.tokenizer.encode(prompt)
            found[f"logits {i}"] = _hash(model.logits(tokens).tobytes())
            for name, setting in _SETTINGS.items():
                for plainly in (True, False):
                    key = f"{name} {'plain' if plainly else 'speculated'} {i}"
                    found[key] = _generated(model, prompt, setting, plainly)
        return found
    finally:
        model.close()


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:]] or [nano.path()]
    json.dump({path.name: hashes(path) for path in files}, sys.stdout, indent=1)
    sys.stdout.write("\n")
