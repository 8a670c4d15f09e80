"""`--override-kv` and the flags of rope: what they come to."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from nextn.cli.flags import fill
from nextn.cli.override_options import OverrideOptions

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({}, {}),
        ({"rope_scale": 4.0}, {"rope.scaling.factor": 4.0}),
        ({"rope_freq_scale": 0.25}, {"rope.scaling.factor": 4.0}),
        ({"rope_freq_base": 1e6}, {"rope.freq_base": 1e6}),
        ({"rope_scaling": "none"}, {"rope.scaling.type": "none"}),
        (
            {"rope_scaling": "yarn", "yarn_orig_ctx": 32768, "yarn_ext_factor": 0.0},
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.original_context_length": 32768,
                "rope.scaling.yarn_ext_factor": 0.0,
            },
        ),
        ({"yarn_attn_factor": 1.5}, {"rope.scaling.attn_factor": 1.5}),
        (
            {"yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0},
            {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_beta_slow": 2.0},
        ),
        ({"override_kv": ["a.b=int:5", "a.c=bool:true"]}, {"a.b": 5, "a.c": True}),
    ],
)
def test_flags_and_the_keys_that_they_set(given: dict[str, Any], values: dict[str, Any]) -> None:
    assert fill(OverrideOptions, given).values() == values


@pytest.mark.parametrize("command", ["generate", "serve", "speculative-simple"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--rope-scaling long", "--rope-scaling must be none, linear or yarn, got 'long'"),
        ("--rope-scale 0", "--rope-scale must be more than 0, got 0"),
        ("--rope-freq-base nan", "--rope-freq-base must be more than 0, got nan"),
        ("--rope-scale 2 --rope-freq-scale 0.5", "exclude each other"),
        ("--override-kv x", "--override-kv is like llama.context_length=int:4096"),
        ("--override-kv a=int:x", "--override-kv a: 'x' is no int"),
        ("--yarn-orig-ctx -5", "invalid value for --yarn-orig-ctx"),
    ],
)
def test_flags_that_are_wrong(command: str, flags: str, message: str, spec: Run) -> None:
    prompt = [] if command == "serve" else ["-p", "hi"]
    done = spec(command, "-m", "m.gguf", *prompt, *flags.split())
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["generate", "speculative-simple"])
def test_another_base_writes_another_text(command: str, real_spec_here: Run) -> None:
    line = [command, "-m", "nano", "-n", "24", "--temp", "0", "-q", "-p", "def add(a, b):\n"]
    plain = real_spec_here(*line)
    other = real_spec_here(*line, "--rope-freq-base", "50")
    same = real_spec_here(*line, "--override-kv", "qwen35.rope.freq_base=float:50")
    assert plain.returncode == other.returncode == 0
    assert plain.stdout != other.stdout == same.stdout
