"""Command lines of llama.cpp's tools: each does the same here, or one line says what to use."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import pytest
import typer

from nextn.cli.app import COMMANDS, run
from nextn.cli.lazy_group import load
from nextn.cli.llama_flag_table import ENVIRONMENT, ROWS
from nextn.cli.llama_flags import CommandLine, ignored_flags

TOOLS = {"S": "serve", "C": "generate", "P": "speculative-simple"}
TOOL_OF = {
    "llama-server": "serve",
    "llama-cli": "generate",
    "llama-speculative-simple": "speculative-simple",
}
# From READMEs, model cards, scripts and issues: what people paste.
TAKEN = """
llama-server -m model.gguf
llama-server -m models/7B/ggml-model.gguf -c 2048
llama-server -m model.gguf --host 0.0.0.0 --port 8080 --api-key secret -ngl 99
llama-server -m model.gguf -c 0 -fa on --jinja
llama-server --model model.gguf --ctx-size 32768 --jinja -ub 2048 -b 2048 -fa auto
llama-server -m model.gguf -c 16384 -np 4
llama-server -m model.gguf -md draft.gguf
llama-server -m m.gguf -md d.gguf -ngl 99 -ngld 99 -fa on --spec-draft-n-max 16 --spec-draft-n-min 5
llama-server -m m.gguf --spec-type draft-mtp --spec-draft-n-max 3
llama-server -m m.gguf --spec-type ngram-mod --spec-ngram-mod-n-match 24 --spec-ngram-mod-n-min 48
llama-server -m m.gguf --spec-type ngram-simple,ngram-map-k4v --spec-ngram-simple-size-n 12
llama-server -m model.gguf --temp 0.7 --top-p 0.8 --top-k 20 --min-p 0 --presence-penalty 1.5
llama-server -m m.gguf --n-gpu-layers all --split-mode row --tensor-split 3,1 --main-gpu 0
llama-server -m m.gguf -ngl 99 -ncmoe 20 --no-mmap --mlock -t 8 -tb 16
llama-server -m m.gguf -ctk q8_0 -ctv q8_0 -fa 1
llama-server -m m.gguf --chat-template chatml --reasoning-format deepseek
llama-server -m m.gguf --jinja --chat-template-kwargs '{"enable_thinking": false}'
llama-server -m m.gguf --reasoning-budget 0 --reasoning off
llama-server -m m.gguf --reasoning-budget 512 --reasoning-budget-message 'That is enough.'
llama-server -m gpt-oss.gguf --ctx-size 0 --jinja -ub 2048 -b 2048 --reasoning-effort high
llama-server -m m.gguf --metrics --slots --no-webui --slot-save-path .
llama-server -m m.gguf --cache-reuse 256 --cache-ram 4096 --ctx-checkpoints 32
llama-server -m m.gguf --swa-full --kv-unified -np 2 --no-context-shift
llama-server -m m.gguf --numa distribute --threads 32 --threads-http 8 --prio 2 --poll 50
llama-server -m m.gguf --alias gpt-4o --timeout 600 --log-disable
llama-server -m m.gguf -mm mmproj.gguf --image-max-tokens 512 --no-mmproj-offload
llama-server -m m.gguf --no-mmproj --no-warmup --log-prefix --log-timestamps -lv 3
llama-server -m m.gguf --cpu-moe --op-offload --no-host --fit off
llama-server -m m.gguf --ssl-key-file k.pem --ssl-cert-file c.pem --props --cont-batching
llama-server --model m.gguf --ctx_size 4096 --n_predict 128 --top_k 40
llama-server -hf ggml-org/gemma-3-1b-it-GGUF
llama-server -hf unsloth/Qwen3-8B-GGUF:Q4_K_M --jinja -hfd ggml-org/Qwen3-0.6B-GGUF
llama-server -hf ggml-org/models -hff tinyllamas/split/stories15M-q8_0-00001-of-00003.gguf --offline
llama-cli -hf ggml-org/gemma-3-1b-it-GGUF -p hi
llama-server -m m.gguf --embedding --pooling cls -ub 8192 --embd-normalize 2
llama-cli -m model.gguf
llama-cli -m model.gguf -p "I believe the meaning of life is" -n 128 -no-cnv
llama-cli -m model.gguf -cnv --chat-template chatml
llama-cli -m model.gguf -cnv -p "You are a helpful assistant" -st
llama-cli -m m.gguf -p "Building a website can be done in 10 simple steps:\\nStep 1:" -n 400 -e
llama-cli -m m.gguf -f prompt.txt -n -1 --temp 0 -s 42 -t 4
llama-cli -m m.gguf -n 256 --grammar-file grammars/json.gbnf -p 'Request: schedule a call'
llama-cli -m m.gguf -ngl 33 -c 4096 --repeat-penalty 1.1 --color on -r "User:" -p "User: hi"
llama-cli -m m.gguf --jinja --single-turn -sys "Be brief" -p hi -fa on --no-display-prompt
llama-cli -m m.gguf -j '{}' -p x --ignore-eos -n 8 --samplers "top_k;temperature"
llama-cli -m m.gguf -p hi --no-escape --no-perf --simple-io -ub 512 -b 2048 --keep -1
llama-cli -m m.gguf -p hi -dev none -nkvo -sm none -mg 0 --no-repack --mlock
llama-cli -m m.gguf -p hi -dev CUDA0,CUDA1 --verbose-prompt --show-timings
llama-cli -m m.gguf -p hi --context-shift --warmup -np 1 -cram 0 -dt 0.1
llama-cli -m m.gguf -mm mmproj.gguf --image a.png -p what --mmproj-offload
llama-cli -m m.gguf -p hi -C ff -Cr 0-3 --cpu-strict 1 --lazy-mode auto -lm mmap
llama-speculative-simple -m m.gguf -md d.gguf -p "Hello" -n 64 --temp 0
llama-speculative-simple -m m.gguf -md d.gguf -f p.txt -c 4096 -ngl 99 -ngld 99 -fa on
llama-speculative-simple -m m.gguf -p hi --spec-type ngram-mod -n 32 --spec-draft-p-split 0.1
llama-speculative-simple -m m.gguf -md d.gguf -p hi -td 2 -tbd 2 -ctkd q8_0 -devd none -co on
llama-server -m m.gguf -md d.gguf --draft-max 16 --draft-min 5 --draft-p-min 0.6
llama-server -m m.gguf -mtp --draft 4
llama-server --models-dir models --models-max 2 --no-models-autoload
llama-server --models-preset presets.ini --models-autoload
llama-server -m m.gguf --api-prefix /llm --reuse-port
llama-server -m m.gguf --rope-scaling yarn --rope-scale 4 --yarn-orig-ctx 32768
llama-cli -m m.gguf --override-kv tokenizer.ggml.add_bos_token=bool:false
llama-server -m m.gguf --ignore-eos
llama-server -m m.gguf --lora a.gguf,b.gguf --lora-scaled c.gguf:0.5 --lora-init-without-apply
llama-cli -m m.gguf -p hi --lora a.gguf --lora b.gguf
llama-server -m m.gguf --reranking --pooling rank --embedding
llama-server -m m.gguf --grammar 'root ::= "a"'
llama-server -m m.gguf -j '{}'
llama-cli -m m.gguf -p hi --spec-type ngram-map-k --spec-ngram-size-n 8 --spec-ngram-min-hits 2
"""
REFUSED = """
llama-server --fim-qwen-7b-default
llama-server --gpt-oss-20b-default
llama-server -m m.gguf --rpc 10.0.0.2:50052
llama-server -m m.gguf -ot "ffn_.*_exps=CPU"
llama-server -m m.gguf --tools all
llama-cli -m m.gguf -i
llama-cli -m m.gguf --mmproj-url https://example.com/mmproj.gguf -p what
llama-cli -m m.gguf --control-vector-layer-range 1 2
llama-cli -m m.gguf -p hi --list-devices
llama-speculative-simple -m m.gguf -p hi --grammar 'root ::= "a"'
"""


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def context_of(name: str) -> Any:
    """Of a command without words."""
    command = load(name, COMMANDS[name])
    return command.make_context(name, [], resilient_parsing=True)


def read(name: str, words: list[str], environment: Mapping[str, str] | None = None) -> list[str]:
    return CommandLine(context_of(name), environment or {}).read(words)


def values_of(line: str) -> dict[str, Any]:
    """The flags as the command gets them."""
    tool, *words = shlex.split(line)
    name = TOOL_OF[tool]
    values: dict[str, Any] = load(name, COMMANDS[name]).make_context(name, words).params
    return values


@pytest.mark.parametrize("line", lines_of(TAKEN))
def test_a_command_line_is_taken(line: str) -> None:
    assert values_of(line)


@pytest.mark.parametrize("line", lines_of(REFUSED))
def test_one_line_says_what_to_use(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    tool, *words = shlex.split(line)
    assert run([TOOL_OF[tool], *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert " is not supported: " in shown.err


def test_what_a_command_has_is_not_in_the_table() -> None:
    for letter, name in TOOLS.items():
        own = {spelling for param in context_of(name).command.params for spelling in param.opts}
        names = [each for row in ROWS if letter in row.tools for each in row.names]
        assert own.isdisjoint(names), name
        assert len(names) == len(set(names)), name


def test_every_variable_sets_a_flag_of_a_command() -> None:
    params = [param for name in TOOLS.values() for param in context_of(name).command.params]
    assert set(ENVIRONMENT.values()) <= {spelling for param in params for spelling in param.opts}


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["-lv", "0"], ["--quiet"]),
        (["-lv", "1"], ["--log-level", "error"]),
        (["-lv", "2"], ["--log-level", "warning"]),
        (["-lv", "3"], []),
        (["-lv", "4"], ["--verbose", "--log-level", "debug"]),
        (["--log-jsonl"], ["--log-format", "json"]),
    ],
)
def test_the_log_of_a_server(words: list[str], ours: list[str]) -> None:
    assert CommandLine(context_of("serve")).read(words) == ours


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["-lv", "0"], ["--quiet"]),
        (["-lv", "3"], []),
        (["-lv", "5"], ["--verbose"]),
        (["-st"], ["--chat"]),
        (["-n16"], ["-n", "16"]),
        (["--ctx_size", "9"], ["--ctx-size", "9"]),
        (["-p", "-ngl"], ["-p", "-ngl"]),
        (["--prompt=-fa", "-fa", "on"], ["--prompt=-fa"]),
        (["--", "-ngl", "9"], ["--", "-ngl", "9"]),
        (["-"], ["-"]),
    ],
)
def test_what_words_become(words: list[str], ours: list[str]) -> None:
    assert read("generate", words) == ours


@pytest.mark.parametrize("flag", ["-dev", "--device"])
@pytest.mark.parametrize(
    ("given", "name"),
    [("CUDA0,CUDA1", "cuda:0,1"), ("none", "cpu"), ("cuda", "cuda"), ("CUDA", "CUDA")],
)
def test_devices_have_names_of_llama_cpp_too(flag: str, given: str, name: str) -> None:
    assert values_of(f"llama-cli -m m.gguf -p hi {flag} {given}")["device"] == name


def test_flags_without_effect_are_named_once() -> None:
    read("generate", ["-ngl", "9", "-fa", "on", "-ngl", "8", "x"])
    assert list(ignored_flags()) == ["-ngl", "-fa"]
    read("generate", ["x"])
    assert not ignored_flags()


@pytest.mark.parametrize(
    ("environment", "words", "ours"),
    [
        ({"LLAMA_ARG_CTX_SIZE": "64"}, [], ["--ctx-size=64"]),
        ({"LLAMA_ARG_CTX_SIZE": "64"}, ["-c", "32"], ["-c", "32"]),
        ({"LLAMA_ARG_ENDPOINT_METRICS": "1"}, [], ["--metrics"]),
        ({"LLAMA_ARG_ENDPOINT_METRICS": "off"}, [], []),
        ({"LLAMA_ARG_ENDPOINT_SLOTS": "false"}, [], ["--no-slots"]),
        ({"LLAMA_ARG_NO_UI": "whatever"}, [], ["--no-ui"]),
        ({"LLAMA_ARG_UI": "0"}, ["--webui"], ["--webui"]),
        ({"LLAMA_API_KEY": "k"}, [], ["--api-key=k"]),
        ({"LLAMA_ARG_N_GPU_LAYERS": "99", "LLAMA_ARG_UNKNOWN": "x"}, [], []),
    ],
)
def test_variables(environment: dict[str, str], words: list[str], ours: list[str]) -> None:
    assert read("serve", words, environment) == ours


def test_a_wrong_variable_names_itself() -> None:
    with pytest.raises(typer.BadParameter, match="LLAMA_ARG_UI must be on or off, got 'maybe'"):
        read("serve", [], {"LLAMA_ARG_UI": "maybe"})


def test_names_of_other_months_and_programs() -> None:
    old = ["--draft-max", "8", "--draft-min=2", "--spec-ngram-size-n", "5", "-mtp"]
    assert read("generate", old) == [
        "--spec-draft-n-max", "8", "--spec-draft-n-min", "2",
        "--spec-ngram-simple-size-n", "5", "--spec-ngram-map-k-size-n", "5",
        "--spec-ngram-map-k4v-size-n", "5", "--spec-type", "mtp",
    ]  # fmt: skip
    assert read("serve", [], {"LLAMA_ARG_DRAFT_MAX": "6"}) == ["--spec-draft-n-max=6"]


def test_a_wrong_value_names_its_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LLAMA_ARG_TOP_K", "abc")
    assert run(["generate", "-m", "m.gguf", "hi"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("spec: error: invalid value for --top-k: ")
    assert shown.endswith(" (set by LLAMA_ARG_TOP_K)\n")
    assert run(["generate", "-m", "m.gguf", "--top-k", "x", "hi"]) == 2
    assert "LLAMA_ARG" not in capsys.readouterr().err


def test_other_commands_know_no_such_flags() -> None:
    with pytest.raises(typer.BadParameter, match="no such option -ngl"):
        read("warmup", ["-ngl", "9", "m.gguf"])
