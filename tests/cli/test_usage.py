"""Wrong command lines: one line with the nearest name, exit 2, and nothing on stdout."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from nextn.cli.app import COMMANDS, run

Run = Callable[..., subprocess.CompletedProcess[str]]

GENERATE = ["generate", "-m", "m.gguf"]
WRONG = {
    "generate -m m.gguf --temprature 1 hi": (
        "no such option --temprature (did you mean --temperature?)"
    ),
    "generate -m m.gguf --promt hi": "no such option --promt (did you mean --prompt?)",
    "generate -m m.gguf -temp 1 hi": "no such option -temp (did you mean --temp?)",
    "generate -m m.gguf -seed 1 hi": "no such option -seed (did you mean --seed?)",
    "generate -m m.gguf -ngl many hi": (
        "invalid value for -ngl: 'many' is not a number of layers, auto or all"
    ),
    "generate -m m.gguf -nq hi": "no such option -nq",
    "serve --cors": "no such option --cors (did you mean --cors-origins?)",
    "generate -m m.gguf -hf a/b hi": "--model and --hf-repo exclude each other",
    "generate -hff a.gguf hi": "--hf-file is a file of --hf-repo, which is not given",
    "generate -hf a hi": "--hf-repo is like owner/name or owner/name:Q4_K_M, got 'a'",
    "generate -m m.gguf -mu http://a/b hi": (
        "-mu is not supported: download the file and give it with -m FILE, or -md FILE"
    ),
    "serve -m m.gguf -c": "option '-c' requires an argument",
    "serve -m m.gguf -ub": "-ub needs a value: N",
    "serve -m m.gguf --no-warmup=1": "--no-warmup takes no value",
    "serve -m m.gguf --reasoning maybe": "--reasoning must be on, off or auto, got 'maybe'",
    "generate -m m.gguf --reasoning off hi": "--reasoning needs --chat",
    "generate -m m.gguf -chat hi": "no such option -chat (did you mean --chat?)",
    "generate -m m.gguf --sys x hi": "no such option --sys (did you mean -sys?)",
    "generate -m m.gguf -s x -sys y --chat hi": (
        "invalid value for --seed: input should be a valid integer, "
        "unable to parse string as an integer"
    ),
    "generate -m m.gguf -z hi": "no such option -z",
    "generate -m m.gguf --qqqqqqq hi": "no such option --qqqqqqq",
    "--versoin": "no such option --versoin (did you mean --version?)",
    "genrate": "no such command 'genrate' (did you mean 'generate'?)",
    "xyz": "no such command 'xyz'",
    "generate -m": "option '-m' requires an argument",
    "generate -m m.gguf --quiet=1 hi": "option '--quiet' does not take a value",
    "generate -m m.gguf a b": "got unexpected extra argument(s) (b)",
    "generate -m m.gguf -q -v hi": "--quiet and --verbose exclude each other",
    "generate -m m.gguf -p a b": "more than one prompt: PROMPT and --prompt; give one",
    "generate -m m.gguf -p a -f b": "more than one prompt: --prompt and --file; give one",
    "generate -m m.gguf -n 0 hi": "--predict must be at least 1, or -1 for no limit, got 0",
    "generate -m m.gguf -n -2 hi": "--predict must be at least 1, or -1 for no limit, got -2",
    "generate -m m.gguf --temp -1 hi": (
        "temperature must be a finite number of at least 0, got -1.0"
    ),
    "generate -m m.gguf --temp nan hi": (
        "temperature must be a finite number of at least 0, got nan"
    ),
    "generate -m m.gguf --top-k -1 hi": "top-k must be at least 0 (0 keeps all tokens), got -1",
    "generate -m m.gguf --top-p 0 hi": "top-p must be above 0 and at most 1, got 0.0",
    "generate -m m.gguf --typical 0 hi": "typical must be above 0 and at most 1, got 0.0",
    "generate -m m.gguf --top-nsigma nan hi": "top-nsigma must be a finite number, got nan",
    "generate -m m.gguf --mirostat-ent -1 hi": (
        "mirostat-ent must be a finite number of at least 0, got -1.0"
    ),
    "generate -m m.gguf --display-prompt --chat hi": (
        "--display-prompt is for a prompt that is continued, not --chat"
    ),
    "generate -m m.gguf --display-prompt --json hi": (
        "--display-prompt is for text; JSON has the continuation alone"
    ),
    "generate -m m.gguf --mirostat 1 hi": (
        "mirostat 1 is not supported; use mirostat 2, which replaced it"
    ),
    "generate -m m.gguf --mirostat 2 --samplers top_k hi": (
        "--mirostat replaces the samplers, so their order means nothing"
    ),
    "generate -m m.gguf --samplers top_k --sampling-seq k hi": (
        "--samplers and --sampling-seq say the same; give one"
    ),
    "generate -m m.gguf --sampling-seq kz hi": (
        "sampling-seq has no sampler 'z'; the letters are edskypmxta"
    ),
    "generate -m m.gguf --adaptive-target 0.5 hi": (
        "--adaptive-target needs adaptive_p in --samplers"
    ),
    "generate -m m.gguf -l 5 hi": "--logit-bias is like 15043+1 or 15043-inf, got '5'",
    "generate -m m.gguf -l 5+nan hi": "--logit-bias is like 15043+1 or 15043-inf, got '5+nan'",
    "generate -m m.gguf -l 5+inf hi": (
        "logit-bias of token 5 must be a finite number or -inf, got inf"
    ),
    "generate -m m.gguf --grammar x --grammar-file y hi": (
        "--grammar and --grammar-file exclude each other"
    ),
    "generate -m m.gguf --grammar root::=[y] -j {} hi": (
        "a grammar and a JSON schema cannot both be followed; give one"
    ),
    "generate -m m.gguf -j {} --ignore-eos hi": (
        "--ignore-eos would leave nothing to say once the grammar is complete"
    ),
    "generate -m m.gguf -j {]} hi": (
        "--json-schema is not JSON: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)"
    ),
    "generate -m m.gguf --json --jsonl hi": "--json and --jsonl exclude each other",
    "generate -m m.gguf --logprobs 2 hi": "--logprobs needs --json or --jsonl to be printed in",
    "generate -m m.gguf --json --show-drafts hi": (
        "--show-drafts colours text; JSON names the source of each token"
    ),
    "generate -m m.gguf -sys x hi": "--system-prompt needs --chat",
    "generate -m m.gguf --chat-template chatml hi": "--chat-template needs --chat",
    "generate -m m.gguf --chat -sys x -sysf y hi": (
        "--system-prompt and --system-prompt-file exclude each other"
    ),
    "generate -m m.gguf --chat --chat-template-kwargs [1] hi": (
        """--chat-template-kwargs must be a JSON object, such as '{"enable_thinking": false}'"""
    ),
    "generate -m m.gguf -t 2 --device torch hi": "--threads is for --device cpu, not torch",
    "generate -m m.gguf -ctk q9 hi": "--cache-type-k 'q9': unknown type; choose f16 or q8_0",
    "generate -m m.gguf -ctv q8_0 --device torch hi": (
        "--cache-type-k and --cache-type-v are for --device cpu and cuda, not torch"
    ),
    "generate -m m.gguf --spec-type ngram hi": (
        "--spec-type 'ngram' is unknown; did you mean ngram-mod? (known: ngram-simple, "
        "ngram-map-k, ngram-map-k4v, ngram-mod, ngram-cache, suffix, draft, dflash, eagle3, "
        "gemma4-assistant, mtp, auto, none)"
    ),
    "generate -m m.gguf --spec-type none,mtp hi": (
        "--spec-type: none cannot be combined with other types"
    ),
    "generate -m m.gguf --spec-type auto --spec-default hi": (
        "--spec-type: auto cannot be combined with other types"
    ),
    "generate -m m.gguf --spec-typ mtp hi": (
        "no such option --spec-typ (did you mean --spec-type?)"
    ),
    "generate -m m.gguf --spec-type draft hi": (
        "--spec-type draft needs a model to draft with: give -md FILE"
    ),
    "generate -m m.gguf --spec-type ngram-mod -md d.gguf hi": (
        "-md is for --spec-type draft, mtp, eagle3, dflash, gemma4-assistant or auto, not ngram-mod"
    ),
    "generate -m m.gguf --spec-type draft -md none hi": (
        "--spec-type draft needs a model to draft with: give -md FILE"
    ),
    "generate -m m.gguf --spec-draft-n-max 65 hi": (
        "--spec-draft-n-max must be between 0 and 64, got 65"
    ),
    "generate -m m.gguf --spec-draft-n-max 2 --spec-draft-n-min 3 hi": (
        "--spec-draft-n-min is 3, more than spec-draft-n-max, 2: no draft could ever be long enough"
    ),
    "generate -m m.gguf --spec-draft-p-min 1.5 hi": (
        "--spec-draft-p-min must be a probability, 0 to 1, got 1.5"
    ),
    "generate -m m.gguf --spec-ngram-mod-n-max 3 hi": (
        "--spec-ngram-mod-n-min is 48, more than spec-ngram-mod-n-max, 3"
    ),
    "generate -m m.gguf --spec-ngram-map-k4v-min-hits 0 hi": (
        "--spec-ngram-map-k4v-min-hits must be between 1 and 65535, got 0"
    ),
    "generate -m m.gguf --spec-suffix-n-match 33 hi": (
        "--spec-suffix-n-match must be between 1 and 32, got 33"
    ),
    "generate -m m.gguf --spec-suffix-n-max 65 hi": (
        "--spec-suffix-n-max must be between 1 and 64, got 65"
    ),
    "generate -m m.gguf --spec-corpus-budget 0 hi": (
        "--spec-corpus-budget must be between 1 and 40960, got 0"
    ),
    "generate -m m.gguf --spec-draft-n-max x hi": (
        "invalid value for --spec-draft-n-max: input should be a valid integer, "
        "unable to parse string as an integer"
    ),
    "generate -m m.gguf --spec-synth-rates 0.8;0.5 hi": (
        "--spec-synth-rates are numbers with commas between, such as 0.8,0.5, got '0.8;0.5'"
    ),
    "generate -m m.gguf --spec-synth-rates 0.8 --spec-synth-len 2 hi": (
        "--spec-synth-len and spec-synth-rates exclude each other"
    ),
    "warmup --draft-max 8 m.gguf": "no such option --draft-max",
    "generate -m m.gguf --verify-lossless --spec-accept ratio hi": (
        "--verify-lossless is for --spec-accept match without synthetic acceptance: "
        "anything else is meant to change the text"
    ),
    "generate -m m.gguf --verify-lossless --spec-synth-len 2 hi": (
        "--verify-lossless is for --spec-accept match without synthetic acceptance: "
        "anything else is meant to change the text"
    ),
    "speculative-simple -m m.gguf --spec-fixed hi": (
        "no such option --spec-fixed (did you mean --spec-type?)"
    ),
    "speculative-simple -m m.gguf -n 0 hi": (
        "--predict must be at least 1, or -1 for no limit, got 0"
    ),
    "speculative-simple -m m.gguf --temp -1 hi": (
        "temperature must be a finite number of at least 0, got -1.0"
    ),
    "speculative-simple -m m.gguf -p a -f b": "more than one prompt: --prompt and --file; give one",
    "generate -m m.gguf -s -2 hi": "seed must be between 0 and 2^64-1, got -2",
    "generate -m m.gguf -s 18446744073709551616 hi": (
        "seed must be between 0 and 2^64-1, got 18446744073709551616"
    ),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_one_line(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(line.split()) == 2
    shown = capsys.readouterr()
    assert shown.err == f"spec: error: {WRONG[line]}\n"
    assert shown.out == ""


def test_an_empty_stop_text_and_a_broken_grammar(capsys: pytest.CaptureFixture[str]) -> None:
    for flag, text, line in (
        ("--stop", "", "a stop string is empty, which would end every text at once"),
        ("--grammar", 'root ::= "yes', "the grammar, line 1: '\"yes' cannot be read"),
        ("--dry-sequence-breaker", "", "each --dry-sequence-breaker must have 1 to 40 characters"),
    ):
        assert run([*GENERATE, flag, text, "hi"]) == 2
        assert capsys.readouterr().err.startswith(f"spec: error: {line}")


@pytest.mark.parametrize("flag", ["-n", "-c", "--seed", "--temp", "--top-k", "--top-p"])
def test_a_value_that_is_no_number_names_its_flag(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*GENERATE, flag, "x1", "hi"]) == 2
    shown = capsys.readouterr().err
    long_name = {"-n": "--predict", "-c": "--ctx-size"}.get(flag, flag)
    assert shown.startswith(f"spec: error: invalid value for {long_name}: ")
    assert shown.count("\n") == 1


def test_attached_values_still_work(spec: Run) -> None:
    done = spec("generate", "-m", "m.gguf", "-p", "hello", "-n16", script={"echo": True})
    assert done.returncode == 0
    assert '"prompt": "hello"' in done.stdout
    assert '"max_tokens": 16' in done.stdout


def test_no_command_shows_help_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    shown = capsys.readouterr()
    assert "Usage: spec" in shown.err
    assert "generate" in shown.err
    assert shown.out == ""


def test_version_and_help_are_results(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("spec ")
    lines = (["--help"], ["-h"], ["help"], ["generate", "--help"], ["help", "convert", "quantize"])
    for line in lines:
        assert run(line) == 0
        shown = capsys.readouterr()
        assert shown.out.startswith("Usage: spec")
        assert shown.err == ""


def test_help_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["serve"], ["convert", "quantize"], ["bench-spec", "compare"]):
        run(["help", *words])
        shown = capsys.readouterr().out
        run([*words, "--help"])
        assert shown == capsys.readouterr().out
        assert shown.startswith(f"Usage: spec {' '.join(words)} ")
    assert run(["help", "genrate"]) == 2
    assert "did you mean 'generate'" in capsys.readouterr().err


def test_only_finished_commands_are_listed() -> None:
    contract = {"generate", "warmup", "speculative-simple", "bench-spec", "serve", "convert"}
    names = list(COMMANDS)
    assert {name.partition(" ")[0] for name in names} <= contract
