"""What a terminal, a closed pipe, a full disk and Ctrl-C do to `spec generate`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from nextn.core.speculation.options import DRAFTERS

if sys.platform == "win32":
    pytest.skip("needs pseudo-terminals and POSIX signals", allow_module_level=True)
import pty
import termios

Environment = Callable[..., dict[str, str]]
GENERATE = ("generate", "-m", "m.gguf", "-s", "1", "--no-display-prompt")
HANGS_S = 120.0


class OnTerminal:
    """A process whose three streams are pseudo-terminals of their own."""

    def __init__(self, command: list[str], environment: dict[str, str], columns: int = 80) -> None:
        self.masters, slaves = zip(*(pty.openpty() for _ in range(3)), strict=True)
        for slave in slaves:
            termios.tcsetwinsize(slave, (24, columns))
        self.process = subprocess.Popen(
            command, env=environment, stdin=slaves[0], stdout=slaves[1], stderr=slaves[2]
        )
        for slave in slaves:
            os.close(slave)

    def finish(self) -> tuple[int, str, str]:
        shown = [read_all(master) for master in self.masters[1:]]
        code = self.process.wait(timeout=HANGS_S)
        for master in self.masters:
            os.close(master)
        return code, shown[0], shown[1]


def read_all(master: int) -> str:
    data = b""
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # Linux says EIO when the other end closes
            piece = b""
        if not piece:
            return data.decode().replace("\r\n", "\n")
        data += piece


@pytest.fixture
def on_terminal(
    fake_command: list[str], fake_environment: Environment
) -> Callable[..., tuple[int, str, str]]:
    def run(*args: str, script: dict[str, Any] | None = None, **extra: str) -> tuple[int, str, str]:
        environment = fake_environment(script or {}, **extra)
        return OnTerminal([*fake_command, *args], environment).finish()

    return run


def test_control_characters_do_not_reach_a_terminal(
    on_terminal: Callable[..., tuple[int, str, str]],
) -> None:
    evil = ["a\x1b]0;own", "ed\x07b\x9b31mc\td\ne\x00\x7f\rf", "\x1b", "[2J"]
    code, shown, _ = on_terminal(*GENERATE, "hi", script={"pieces": evil})
    assert code == 0
    assert shown == "a]0;ownedb31mc\td\nef[2J\n"


def test_a_terminal_shows_the_prompt_and_a_pipe_does_not(
    on_terminal: Callable[..., tuple[int, str, str]],
    spec: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    plain = tuple(word for word in GENERATE if word != "--no-display-prompt")
    script = {"pieces": ["done"]}
    assert on_terminal(*plain, "h\x1bi", script=script)[1] == "\x1b[2mhi\x1b[0mdone\n"
    assert on_terminal(*plain, "hi\n", script=script, NO_COLOR="1")[1] == "hi\ndone\n"
    assert on_terminal(*plain, "hi", "--json", script=script)[1].startswith("{")
    assert on_terminal(*GENERATE, "hi", script=script)[1] == "done\n"
    assert spec(*plain, "hi", script=script).stdout == "done"
    assert spec(*plain, "hi", "--display-prompt", script=script).stdout == "hidone"


def test_the_prompt_of_a_file_and_its_control_characters(
    on_terminal: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    plain = ("generate", "-m", "m.gguf", "-s", "1")
    file = tmp_path / "prompt.txt"
    file.write_text("one\r\n\x1b]0;two\x07\tthree\x9b2J\n\n")
    shown = on_terminal(*plain, "-f", str(file), script={"pieces": ["four"]}, NO_COLOR="1")[1]
    assert shown == "one\n]0;two\tthree2J\nfour\n"
    assert on_terminal(*plain, "hi", script={"pieces": []}, TERM="dumb")[1] == "hi\n"


def test_a_chat_shows_no_prompt(on_terminal: Callable[..., tuple[int, str, str]]) -> None:
    script = {"pieces": ["done"], "template": "{{ messages[0].content }}"}
    plain = ("generate", "-m", "m.gguf", "-s", "1", "--chat")
    assert on_terminal(*plain, "hi", script=script)[1] == "done\n"
    assert on_terminal(*plain, "--no-display-prompt", "hi", script=script)[1] == "done\n"


def test_prompt_text_and_summary_on_one_terminal(
    fake_command: list[str], fake_environment: Environment
) -> None:
    words = [*fake_command, "generate", "-m", "m.gguf", "-s", "1", "one\nhel"]
    code, shown = on_one_terminal(words, fake_environment({"pieces": ["lo"]}, NO_COLOR="1"))
    assert code == 0
    assert "\x1b[Kone\nhello\nloaded " in shown


def test_a_refused_prompt_leaves_the_error_a_line_of_its_own(
    fake_command: list[str], fake_environment: Environment
) -> None:
    for command in ("generate", "speculative-simple"):
        words = [sys.executable, "-c", "from nextn.cli.start import main; main()", command]
        words += ["-c", "64", "-q", "import os " * 60]
        code, shown = on_one_terminal(words, fake_environment({}, NO_COLOR="1"))
        assert code == 1
        assert "import os \nspec: error: the prompt has " in shown


def on_one_terminal(words: list[str], environment: dict[str, str]) -> tuple[int, str]:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 80))
    process = subprocess.Popen(words, env=environment, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    shown = read_all(master)
    os.close(master)
    return process.wait(timeout=HANGS_S), shown


def test_progress_is_not_drawn_over_the_prompt(
    on_terminal: Callable[..., tuple[int, str, str]],
) -> None:
    """Both streams are often one terminal."""
    shown = on_terminal(*GENERATE, "hi", "--display-prompt")[2]
    assert "reading the prompt" not in shown
    assert "reading the prompt" in on_terminal(*GENERATE, "hi\n", "--display-prompt")[2]


def test_a_terminal_gets_one_newline_at_the_end(
    on_terminal: Callable[..., tuple[int, str, str]],
) -> None:
    assert on_terminal(*GENERATE, "hi", script={"pieces": ["done\n"]})[1] == "done\n"
    assert on_terminal(*GENERATE, "hi", script={"pieces": ["done"]})[1] == "done\n"


def test_progress_is_drawn_and_erased_on_a_terminal(
    on_terminal: Callable[..., tuple[int, str, str]],
) -> None:
    shown = on_terminal(*GENERATE, "hi")[2]
    assert shown.startswith("\r\x1b[Kloading weights  50%\r\x1b[K")
    assert "\x1b[2mstopped    limit, seed 1\x1b[0m\n" in shown


def test_compiling_and_the_prompt_are_progress_too(
    on_terminal: Callable[..., tuple[int, str, str]],
) -> None:
    script = {"compiling": [["compiling 4 kernels", 0.25], ["compiling 4 kernels", 1.0]]}
    drawn = on_terminal(*GENERATE, "hi", script=script, NO_COLOR="1")[2].split("\r\x1b[K")
    compiling = "compiling 4 kernels, once for this file  25%"
    assert [line for line in drawn if line][:3] == [
        "loading weights  50%",
        compiling,
        "reading the prompt",
    ]
    refused = on_terminal(*GENERATE, "too long", script={"refuse": "long"}, NO_COLOR="1")[2]
    assert refused.endswith("\r\x1b[Kreading the prompt\r\x1b[Kspec: error: too long\n")


def test_progress_is_cut_to_a_narrow_terminal(
    fake_command: list[str], fake_environment: Environment
) -> None:
    """A line that wraps could not be erased."""
    run = OnTerminal([*fake_command, *GENERATE, "hi"], fake_environment({}), columns=12)
    assert run.finish()[2].startswith("\r\x1b[Kloading wei\r\x1b[K")


def test_show_drafts_colours_tokens_by_their_source(
    on_terminal: Callable[..., tuple[int, str, str]],
) -> None:
    script = {"pieces": list("abcde"), "sources": ["target", "mtp", "ngram", "mtp", "target"]}
    flags = (*GENERATE, "--show-drafts", "hi")
    _, shown, error = on_terminal(*flags, script=script)
    assert shown == "a\x1b[32mb\x1b[0m\x1b[36mc\x1b[0m\x1b[32md\x1b[0me\n"
    legend = "drafted by\x1b[0m \x1b[32mmtp\x1b[0m, \x1b[36mngram\x1b[0m\n"
    assert legend in error
    assert on_terminal(*GENERATE, "hi", script=script)[1] == "abcde\n"
    _, shown, error = on_terminal(*flags, script=script, NO_COLOR="1")
    assert shown == "abcde\n"
    assert "--show-drafts shows nothing here: stdout is no terminal with colours\n" in error


def test_every_kind_of_drafter_has_a_colour_of_its_own(
    on_terminal: Callable[..., tuple[int, str, str]],
) -> None:
    pieces = [chr(97 + i) for i in range(len(DRAFTERS))]
    script = {"pieces": pieces, "sources": list(DRAFTERS)}
    _, shown, error = on_terminal(*GENERATE, "--show-drafts", "hi", script=script)
    colours = re.findall(r"\x1b\[(\d+)m([a-z])\x1b\[0m", shown)
    assert [piece for _, piece in colours] == pieces
    assert len({colour for colour, _ in colours}) == len(DRAFTERS)
    for (colour, _), name in zip(colours, DRAFTERS, strict=True):
        assert f"\x1b[{colour}m{name}\x1b[0m" in error


def test_an_error_does_not_share_its_line_with_the_progress(
    on_terminal: Callable[..., tuple[int, str, str]],
) -> None:
    shown = on_terminal(*GENERATE, "hi", script={"load_error": "ModelError"}, NO_COLOR="1")[2]
    assert shown == "\r\x1b[Kloading weights  50%\r\x1b[Kspec: error: no good\n"


@pytest.mark.parametrize("extra", [{"TERM": "dumb"}, {"TERM": "dumb", "NO_COLOR": "1"}])
def test_a_dumb_terminal_gets_plain_lines(
    on_terminal: Callable[..., tuple[int, str, str]], extra: dict[str, str]
) -> None:
    shown = on_terminal(*GENERATE, "hi", **extra)[2]
    assert "\x1b" not in shown
    assert "\r" not in shown
    assert "stopped    limit, seed 1\n" in shown


def test_no_color_means_no_colour(on_terminal: Callable[..., tuple[int, str, str]]) -> None:
    for script in ({}, {"error": "ModelError"}):
        assert "m" not in escapes(on_terminal(*GENERATE, "hi", script=script, NO_COLOR="1")[2])
        assert "m" in escapes(on_terminal(*GENERATE, "hi", script=script)[2])


def escapes(shown: str) -> set[str]:
    """Final letters of the escape sequences: m sets colours, K erases."""
    return {part.lstrip("0123456789;")[0] for part in shown.split("\x1b[")[1:]}


def test_quiet_draws_no_progress(on_terminal: Callable[..., tuple[int, str, str]]) -> None:
    assert on_terminal(*GENERATE, "-q", "hi")[2] == ""


def test_no_prompt_on_a_terminal_is_a_hint_not_a_wait(
    on_terminal: Callable[..., tuple[int, str, str]],
) -> None:
    code, shown, error = on_terminal("generate", "-m", "nano", NO_COLOR="1")
    assert (code, shown) == (2, "")
    assert error == (
        "spec: error: no prompt: give one as an argument, with -p TEXT or -f FILE, or pipe it in\n"
    )


def start(command: list[str], environment: dict[str, str], **streams: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=streams.get("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )


def output_of(process: subprocess.Popen[str]) -> IO[str]:
    assert process.stdout is not None
    return process.stdout


def test_ctrl_c_ends_with_the_summary_and_130(
    fake_command: list[str], fake_environment: Environment, tmp_path: Path
) -> None:
    script = {"wait": True, "closed": str(tmp_path / "mark")}
    process = start([*fake_command, *GENERATE, "hi"], fake_environment(script))
    assert output_of(process).read(11) == "Hello world"
    process.send_signal(signal.SIGINT)
    rest, error = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130
    assert rest == ""
    assert "generated  2 tokens" in error
    assert error.endswith("stopped    interrupted, seed 1\n")
    assert "Traceback" not in error
    assert (tmp_path / "mark").exists()


@pytest.mark.parametrize(("when", "word"), [("load", "loading"), ("warm_up", "warming")])
def test_ctrl_c_while_loading_is_quiet(
    fake_command: list[str], fake_environment: Environment, when: str, word: str
) -> None:
    process = start([*fake_command, *GENERATE, "hi"], fake_environment({f"wait_in_{when}": True}))
    assert output_of(process).read(7) == word
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=HANGS_S)
    assert (process.returncode, error) == (130, "")


def test_ctrl_c_in_the_prompt_says_that_it_was_not_read(
    fake_command: list[str], fake_environment: Environment
) -> None:
    process = start([*fake_command, *GENERATE, "hi"], fake_environment({"wait_in_prompt": True}))
    assert output_of(process).read(7) == "reading"
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=HANGS_S)
    assert process.returncode == 130
    assert error.splitlines()[1:] == [
        "prompt     3 tokens, not read to the end",
        "stopped    interrupted, seed 1",
    ]


def test_a_second_ctrl_c_ends_at_once(
    fake_command: list[str], fake_environment: Environment
) -> None:
    process = start([*fake_command, *GENERATE, "hi"], fake_environment({"stubborn": True}))
    assert output_of(process).read(12) == "Hello world?"
    process.send_signal(signal.SIGINT)
    assert output_of(process).read(1) == "!"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=HANGS_S) == -signal.SIGINT  # what a shell shows as 130
    process.communicate()


def test_a_reader_that_leaves_is_no_failure(
    fake_command: list[str], fake_environment: Environment
) -> None:
    script = {"pieces": ["line\n"], "repeat": 1_000_000}
    process = start([*fake_command, *GENERATE, "hi"], fake_environment(script))
    assert output_of(process).readline() == "line\n"
    output_of(process).close()
    assert process.stderr is not None
    error = process.stderr.read()
    assert process.wait(timeout=HANGS_S) == 0
    assert error == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line(fake_command: list[str], fake_environment: Environment) -> None:
    with open("/dev/full", "w") as full:
        process = start([*fake_command, *GENERATE, "hi"], fake_environment({}), stdout=full)
        _, error = process.communicate(timeout=HANGS_S)
    assert process.returncode == 1
    assert error == "spec: error: standard output: no space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_survived(
    fake_command: list[str], fake_environment: Environment, closed: str
) -> None:
    words = [*fake_command, *GENERATE, "hi"]
    line = f'"$@" {closed}'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *words], env=fake_environment({}), capture_output=True, check=False
    )
    assert done.returncode == 0
    assert done.stdout == (b"" if ">&-" in closed.split() else b"Hello world")
    assert (b"stopped" in done.stderr) == ("2>&-" not in closed)
