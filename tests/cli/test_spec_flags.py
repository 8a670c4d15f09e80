"""Every option of speculation has its flags, and they come to it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins
from msgspec.structs import fields

from nextn.core.speculation.options import SpecOptions

Run = Callable[..., subprocess.CompletedProcess[str]]
GENERATE = ("generate", "-m", "m.gguf")
DEFAULT = to_builtins(SpecOptions())
# One flag per line, its option (and the size within it), and what it comes to.
FLAGS: list[tuple[str, str, Any]] = [
    ("--spec-type ngram-cache", "types", ["ngram-cache"]),
    ("--spec-draft-n-max 5", "draft_n_max", 5),
    ("--spec-draft-n-min 2", "draft_n_min", 2),
    ("--spec-draft-p-min 0.5", "draft_p_min", 0.5),
    ("--draft-p-min 0.25", "draft_p_min", 0.25),
    ("--spec-draft-first", "draft_first", True),
    ("--spec-fixed", "fixed", True),
    ("--spec-costs c.json", "costs", "c.json"),
    ("--spec-trace t.jsonl", "trace", "t.jsonl"),
    ("--spec-draft-vocab 4096", "draft_vocab", "4096"),
    ("--spec-mtp-prefill 100", "mtp_prefill", 100),
    ("--spec-ngram-simple-size-n 3", "ngram_simple.size_n", 3),
    ("--spec-ngram-simple-size-m 4", "ngram_simple.size_m", 4),
    ("--spec-ngram-simple-min-hits 5", "ngram_simple.min_hits", 5),
    ("--spec-ngram-map-k-size-n 3", "ngram_map_k.size_n", 3),
    ("--spec-ngram-map-k-size-m 4", "ngram_map_k.size_m", 4),
    ("--spec-ngram-map-k-min-hits 5", "ngram_map_k.min_hits", 5),
    ("--spec-ngram-map-k4v-size-n 3", "ngram_map_k4v.size_n", 3),
    ("--spec-ngram-map-k4v-size-m 4", "ngram_map_k4v.size_m", 4),
    ("--spec-ngram-map-k4v-min-hits 5", "ngram_map_k4v.min_hits", 5),
    ("--spec-ngram-mod-n-match 30", "ngram_mod.n_match", 30),
    ("--spec-ngram-mod-n-min 20", "ngram_mod.n_min", 20),
    ("--spec-ngram-mod-n-max 50", "ngram_mod.n_max", 50),
    ("--spec-suffix-n-match 3", "suffix.n_match", 3),
    ("--spec-suffix-n-max 20", "suffix.n_max", 20),
    ("--spec-corpus c.corpus", "corpus", "c.corpus"),
    ("--spec-corpus-budget 64", "corpus_budget", 64),
    ("--lookup-cache-static s.bin", "lookup_cache_static", "s.bin"),
    ("-lcs s.bin", "lookup_cache_static", "s.bin"),
    ("--lookup-cache-dynamic d.bin", "lookup_cache_dynamic", "d.bin"),
    ("-lcd d.bin", "lookup_cache_dynamic", "d.bin"),
    ("--spec-accept relaxed:4", "accept", "relaxed:4"),
    ("--spec-synth-len 2.5", "synth_len", 2.5),
    ("--spec-synth-rates 0.8,0.5", "synth_rates", [0.8, 0.5]),
]


def loaded(spec: Run, *flags: str) -> dict[str, Any]:
    """What the model was loaded with."""
    done = spec(*GENERATE, *flags, "hi", script={"echo": True})
    assert done.returncode == 0, done.stderr
    request: dict[str, Any] = json.loads(done.stdout)["load"]
    return request


def test_every_option_has_a_flag() -> None:
    assert {name.partition(".")[0] for _, name, _ in FLAGS} == {
        field.name for field in fields(SpecOptions)
    }


@pytest.mark.parametrize(("line", "name", "value"), FLAGS, ids=[line for line, _, _ in FLAGS])
def test_a_flag_sets_its_option_and_no_other(line: str, name: str, value: Any, spec: Run) -> None:
    want = json.loads(json.dumps(DEFAULT))
    option, _, size = name.partition(".")
    # Files that other drafters neither read nor write.
    drafter = {"lookup_cache_static": "ngram-cache", "lookup_cache_dynamic": "ngram-cache",
               "corpus": "suffix"}.get(option)  # fmt: skip
    if drafter is not None:
        line += f" --spec-type {drafter}"
        want["types"] = [drafter]
    found = loaded(spec, *line.split())["spec"]
    if size:
        want[option][size] = value
    else:
        want[option] = value
    assert found == want


def test_auto_unless_something_else_is_said(spec: Run) -> None:
    assert "spec" not in loaded(spec)  # the defaults of the options
    assert DEFAULT["types"] == ("auto",)


def test_types_are_a_list_and_add_up(spec: Run) -> None:
    for flags, types in (
        (("--spec-type", "mtp,ngram-mod"), ["ngram-mod", "mtp"]),
        (("--spec-type", "draft-mtp", "--spec-type", "ngram-simple"), ["ngram-simple", "mtp"]),
        (("--spec-default",), ["ngram-mod"]),
        (("--spec-type", "mtp", "--spec-default"), ["ngram-mod", "mtp"]),
        (("--spec-type", "none"), ["none"]),
    ):
        assert loaded(spec, *flags)["spec"]["types"] == types
    assert loaded(spec, "--spec-default")["spec"]["ngram_mod"] == {
        "n_match": 24,
        "n_min": 48,
        "n_max": 64,
    }


@pytest.mark.parametrize("flag", ["-md", "--spec-draft-model", "--model-draft"])
def test_the_draft_model_is_loaded_beside_it(flag: str, spec: Run) -> None:
    assert loaded(spec, flag, "d.gguf")["draft"] == str([Path("d.gguf")])
    both = loaded(spec, flag, "d.gguf", "-md", "e.gguf")["draft"]
    assert both == str([Path("d.gguf"), Path("e.gguf")])


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--spec-fixed --spec-costs c", "--spec-costs is for the controller, which --spec-fixed"),
        ("--spec-fixed --spec-trace t", "--spec-trace is for the controller, which --spec-fixed"),
        ("-lcs s", "--lookup-cache-static is for --spec-type ngram-cache, not auto"),
        ("-lcd s --spec-type mtp,draft -md d", "cache-dynamic is for --spec-type ngram-cache, not"),
        ("--spec-corpus c", "--spec-corpus is for --spec-type suffix, not auto"),
        ("--spec-draft-n-min 4 --spec-fixed", "spec-draft-n-max, 3, by default: no draft"),
        ("--spec-synth-len 2 -j {}", "synthetic acceptance keeps draft tokens that no grammar"),
        ("--spec-synth-rates 0.5 --grammar root::=[a]", "exclude each other"),
        ("--spec-accept ratio --mirostat 2", "--spec-accept ratio needs to know how likely"),
        ("--spec-draft-n-min 17", "spec-draft-n-max, 16, by default: no draft"),
    ],
)
def test_flags_that_would_do_nothing(line: str, said: str, spec: Run) -> None:
    done = spec(*GENERATE, *line.split(), "hi")
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_text_that_is_not_the_models_own_is_announced(spec: Run) -> None:
    synthetic = "synthetic acceptance: figures only, the text is not what the model would write"
    relaxed = (
        "--spec-accept relaxed is lossy: in the thinking phase, draft tokens stay that the model "
        "itself would not have written"
    )
    for flags, said in (
        (("--spec-synth-len", "2"), synthetic),
        (("--spec-synth-rates", "0.5"), synthetic),
        (("--spec-accept", "relaxed:3,0.1"), relaxed),
    ):
        done = spec(*GENERATE, *flags, "hi")
        assert done.returncode == 0
        assert done.stderr.splitlines()[0] == f"warning: {said}"
    for line in ("", "--spec-accept ratio", "--spec-type none --spec-synth-len 2"):
        assert "warning" not in spec(*GENERATE, *line.split(), "hi").stderr
