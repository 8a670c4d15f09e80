"""`spec generate` on a scripted model: prompts, flags, streams, failures."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

Run = Callable[..., subprocess.CompletedProcess[str]]
GENERATE = ("generate", "-m", "m.gguf")
DEFAULTS = {
    "path": "m.gguf", "device": "cpu", "n_ctx": None, "threads": None, "cache": ["f16", "f16"],
}  # fmt: skip


def asked(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the runtime was asked for, which the echoing script prints as its text."""
    assert done.returncode == 0, done.stderr
    request: dict[str, Any] = json.loads(done.stdout)
    return request


def test_stdout_is_the_text_and_nothing_else(spec_process: Run) -> None:
    done = spec_process(*GENERATE, "hi", script={"pieces": ["Grüße", "", " \x1b[1m日本"]})
    assert done.returncode == 0
    assert done.stdout == "Grüße \x1b[1m日本"  # a pipe gets every byte, and no newline of ours


def test_a_pipe_gets_the_prompt_only_by_flag(spec_process: Run) -> None:
    script = {"pieces": ["lo", " world"]}
    for flags, text in (
        ((), "lo world"),
        (("--no-display-prompt",), "lo world"),
        (("--display-prompt",), "\x1b[1m\rhello world"),  # a pipe gets every byte
        (("--display-prompt", "--no-display-prompt"), "lo world"),
    ):
        assert spec_process(*GENERATE, *flags, "\x1b[1m\rhel", script=script).stdout == text


def test_the_summary_is_plain_lines_on_stderr(spec: Run) -> None:
    done = spec(*GENERATE, "-s", "7", "hi")
    assert done.stderr.splitlines() == [
        "loaded     12 ms",
        "prompt     3 tokens in 2 ms, 1500.0 tokens/s",
        "generated  2 tokens in 4 ms, 500.0 tokens/s",
        "stopped    limit, seed 7",
    ]


DRAFTED = {
    "pieces": ["a", "b", "c", "d", "e"],
    "stats": {
        "draft_n": 30, "draft_n_accepted": 12,
        "accept_per_pos": [6, 3, 1, 1, 1, 0, 0, 0, 0, 0],
        "draft_per_pos": [8, 6, 4, 2, 2, 2, 2, 2, 1, 1],
    },
    "by_source": {"ngram-mod": [20, 4, 0.25], "mtp": [10, 8, 123.45], "draft": [0, 0, 1.0]},
}  # fmt: skip


def test_the_summary_tells_what_speculation_brought(spec: Run) -> None:
    done = spec(*GENERATE, "hi", script=DRAFTED)
    assert done.stderr.splitlines()[3] == (
        "drafted    30 tokens, 12 accepted (40%), 1.00 tokens per step; "
        "by place 75 50 25 50 50 0 0 0 ... %"
    )
    assert "mtp" not in done.stderr


def test_verbose_tells_it_by_source(spec: Run) -> None:
    done = spec(*GENERATE, "-v", "-s", "1", "hi", script=DRAFTED)
    at = done.stderr.index("drafted ")
    assert done.stderr[at:].splitlines() == [
        "drafted    30 tokens, 12 accepted (40%), 1.00 tokens per step; "
        "by place 75 50 25 50 50 0 0 0 0 0 %",
        "  source     drafted  accepted     %        ms",
        "  ngram-mod       20         4   20%       0.2",
        "  mtp             10         8   80%     123.5",
        "  draft            0         0    0%       1.0",
        "stopped    limit, seed 1",
    ]


def test_quiet_leaves_stderr_empty(spec: Run) -> None:
    done = spec(*GENERATE, "--quiet", "hi")
    assert (done.stdout, done.stderr) == ("Hello world", "")


def test_verbose_describes_the_model_and_shows_its_control_characters(spec: Run) -> None:
    done = spec(*GENERATE, "-v", "hi")
    assert done.stderr.startswith(
        "loading weights\n"
        "model      fake\\x1b[2J model (llama)\n"
        "device     cpu (2 threads)\n"
        "context    64 tokens, vocabulary 9\n"
        "memory     weights 1.00 GiB = 1.00 GiB\n"
        "reading the prompt\n"
        "loaded     12 ms\n"
    )


@pytest.mark.parametrize(
    ("args", "stdin", "prompt"),
    [
        (("an argument",), "", "an argument"),
        (("an argument",), "not read", "an argument"),
        (("-p", "a flag\\n\n"), "", "a flag\n\n"),
        (("-p", r"\t\r\'\"\\n\x41\xc3\xbc\z\xq"), "", "\t\r'\"\\nAü\\z\\xq"),
        (("--no-escape", "-p", r"\n"), "", r"\n"),
        ((r"\n",), "", r"\n"),
        (("--prompt", "-x starts with a dash"), "", "-x starts with a dash"),
        (("--", "-x"), "", "-x"),
        ((), "piped\n", "piped"),
        (("-",), "piped\n\n", "piped\n"),
        (("-p", "-"), "piped\r\n", "piped"),
        (("-f", "-"), b"\xef\xbb\xbfpiped", "piped"),
        (("",), "", ""),
    ],
)
def test_prompt_sources(
    spec_process: Run, args: tuple[str, ...], stdin: str | bytes, prompt: str
) -> None:
    done = spec_process(*GENERATE, *args, stdin=stdin, script={"echo": True})
    assert asked(done)["prompt"] == prompt


def test_a_prompt_file_loses_one_newline_only(spec: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes("\ufeffZwei\r\nZeilen \n\n".encode())
    done = spec(*GENERATE, "-f", str(file), script={"echo": True})
    assert asked(done)["prompt"] == "Zwei\r\nZeilen \n"


def test_no_prompt_and_an_empty_pipe_is_a_usage_error(spec: Run) -> None:
    done = spec(*GENERATE)
    assert done.returncode == 2
    assert done.stderr.startswith("spec: error: no prompt: give one")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("args", [("-f", "-"), ("-",)])
def test_a_prompt_that_is_not_utf8_is_refused(spec_process: Run, args: tuple[str, ...]) -> None:
    done = spec_process(*GENERATE, *args, stdin=b"ab\xff")
    assert done.returncode == 1
    assert done.stderr == ("spec: error: standard input: the text must be UTF-8; byte 2 is 0xff\n")


@pytest.mark.skipif(sys.platform != "linux", reason="arguments are bytes on Linux only")
def test_an_argument_that_is_not_utf8_is_refused(
    fake_command: list[str], fake_environment: Callable[..., dict[str, str]]
) -> None:
    words = [word.encode() for word in (*fake_command, *GENERATE)]
    done = subprocess.run(
        [*words, b"ab\xff"], env=fake_environment({}), capture_output=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        b"spec: error: the command line: the text must be UTF-8; byte 2 is 0xff\n"
    )


def test_flags_reach_the_runtime(spec: Run) -> None:
    flags = (
        "-n 5 -c 128 -t 3 -ctk q8_0 --cache-type-v q8_0 -s 18446744073709551615 -r A --stop B "
        "--ignore-eos"
    )
    request = asked(spec(*GENERATE, *flags.split(), "hi", script={"echo": True}))
    loaded = {"path": "m.gguf", "device": "cpu", "n_ctx": 128, "threads": 3}
    assert request["load"] == loaded | {"cache": ["q8_0", "q8_0"]}
    params = request["params"]
    assert (params["max_tokens"], params["stop"], params["ignore_eos"]) == (5, ["A", "B"], True)
    assert params["sampling"]["seed"] == 2**64 - 1
    device = asked(spec(*GENERATE, "--device", "torch:cpu", "hi", script={"echo": True}))["load"]
    assert device == DEFAULTS | {"device": "torch:cpu"}


def test_defaults_are_those_of_the_library(spec: Run) -> None:
    from nextn.core.generation import GenerateParams

    request = asked(spec(*GENERATE, "-s", "0", "hi", script={"echo": True}))
    assert request["load"] == DEFAULTS
    assert request["params"] == json.loads(json.dumps(to_builtins(GenerateParams())))


@pytest.mark.parametrize("args", [(), ("-s", "-1")])
def test_a_drawn_seed_is_printed(spec: Run, args: tuple[str, ...]) -> None:
    runs = [spec(*GENERATE, *args, "hi", script={"echo": True}) for _ in range(2)]
    seeds = [asked(done)["params"]["sampling"]["seed"] for done in runs]
    assert seeds[0] != seeds[1]
    for done, seed in zip(runs, seeds, strict=True):
        assert f"stopped    limit, seed {seed}\n" in done.stderr


def test_greedy_has_no_seed_to_print(spec: Run) -> None:
    assert "seed" not in spec(*GENERATE, "--temp", "0", "hi").stderr


@pytest.mark.parametrize("kind", ["NonFiniteError", "ModelError", "FileFormatError"])
def test_a_known_failure_is_one_line_after_the_text_so_far(spec: Run, kind: str) -> None:
    done = spec(*GENERATE, "hi", script={"error": kind})
    assert done.returncode == 1
    assert done.stdout == "Hello world"
    assert done.stderr == "spec: error: it broke\\nbadly \\x1b[31m\n"


def test_a_bug_is_one_line_too_unless_debug(spec_process: Run) -> None:
    done = spec_process(*GENERATE, "hi", script={"error": "ValueError"})
    assert done.returncode == 1
    what = "internal error, ValueError: it broke\\nbadly \\x1b[31m (--debug shows where)"
    assert done.stderr == f"spec: error: {what}\n"
    for debugged in (
        spec_process(*GENERATE, "--debug", "hi", script={"error": "ValueError"}),
        spec_process(*GENERATE, "hi", script={"error": "ValueError"}, SPEC_DEBUG="1"),
    ):
        assert debugged.returncode == 1
        assert "Traceback (most recent call last)" in debugged.stderr
        assert "fake_spec.py" in debugged.stderr


def test_a_flag_that_the_loader_refuses_is_a_usage_error(spec: Run) -> None:
    done = spec(*GENERATE, "hi", script={"load_error": "ConfigError"})
    assert (done.returncode, done.stderr) == (2, "spec: error: no good\n")


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (errno.ENOENT, "no such file: m.gguf"),
        (errno.EISDIR, "m.gguf is a directory, not a file"),
        (errno.EACCES, "no permission to open m.gguf"),
        (errno.EIO, "m.gguf: odd reason"),
    ],
)
def test_what_the_system_refuses_is_one_line(spec: Run, number: int, line: str) -> None:
    done = spec(*GENERATE, "hi", script={"load_os_error": number})
    assert (done.returncode, done.stderr) == (1, f"spec: error: {line}\n")


def test_files_that_cannot_be_a_prompt(spec: Run, tmp_path: Path) -> None:
    missing = spec(*GENERATE, "-f", str(tmp_path / "none.txt"))
    assert (missing.returncode, missing.stderr) == (
        1, f"spec: error: no such file: {tmp_path / 'none.txt'}\n",
    )  # fmt: skip
    folder = spec(*GENERATE, "-f", str(tmp_path))
    assert (folder.returncode, folder.stderr) == (
        1, f"spec: error: {tmp_path} is a directory, not a file\n",
    )  # fmt: skip


@pytest.mark.parametrize("flag", ["-f", "--grammar-file", "-jf"])
def test_a_file_that_never_ends(flag: str, spec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("there is no /dev/zero")
    monkeypatch.setattr("nextn.cli.prompt_source.MAX_BYTES", 1 << 20)
    done = spec(*GENERATE, *(() if flag == "-f" else ("hi",)), flag, "/dev/zero")
    assert done.returncode == 1
    assert done.stderr == "spec: error: /dev/zero: it has more than 1 MiB\n"


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_prompt_without_read_permission(spec: Run, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("x")
    file.chmod(0)
    done = spec(*GENERATE, "-f", str(file))
    assert (done.returncode, done.stderr) == (1, f"spec: error: no permission to open {file}\n")


def test_the_runtime_is_closed_even_after_a_failure(spec: Run, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    spec(*GENERATE, "hi", script={"error": "ValueError", "closed": str(mark)})
    assert mark.exists()


def test_the_text_is_utf8_in_any_locale(spec_process: Run) -> None:
    done = spec_process(*GENERATE, "hi", script={"pieces": ["日本"]}, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stdout) == (0, "日本")


def test_no_escape_codes_without_a_terminal(spec_process: Run) -> None:
    failed = spec_process(*GENERATE, "hi", script={"error": "ModelError"})
    for shown in (spec_process(*GENERATE, "-v", "hi").stderr, failed.stderr):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
