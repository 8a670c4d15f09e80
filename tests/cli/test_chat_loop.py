"""The conversation of `spec generate --chat`, typed on a pseudo-terminal."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from support.harmony_replies import FINAL, SAID, THOUGHT
from support.harmony_template import HARMONY

from nextn.core import nano

if sys.platform == "win32":
    pytest.skip("needs pseudo-terminals", allow_module_level=True)
import pty

Environment = Callable[..., dict[str, str]]
TEMPLATE = "{% for m in messages %}[{{ m.role[0] }}|{{ m.content }}]{% endfor %}"
WAIT_S = 120.0
CTRL_D = "\x04"


class Talk:
    """One terminal for all three streams, as a person has it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command, env=environment, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=take_terminal,
        )  # fmt: skip
        os.close(slave)
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self) -> None:
        """As late as a person does it: Python's `input` overlooks a signal that comes just after
        it has shown its prompt, until the next key."""
        time.sleep(0.2)
        self.type("\x03")

    def wait_for(self, text: str) -> str:
        """What came up to and with `text`, without colours; what follows it stays."""
        end = time.monotonic() + WAIT_S
        while text not in self.shown:
            ready = select.select([self.master], [], [], max(0, end - time.monotonic()))[0]
            assert ready, f"{text!r} did not come, but {self.shown!r}"
            try:
                data = os.read(self.master, 65536).decode()
            except OSError:  # Linux says EIO when the other end closes
                pytest.fail(f"{text!r} did not come, but {self.shown!r} and the end")
            self.shown += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", data).replace("\r", "")
        before, self.shown = self.shown.split(text, 1)
        return before + text

    def say(self, text: str) -> str:
        """Type a line; what was answered, up to the next prompt."""
        self.wait_for("> ")
        self.type(text + "\r")
        self.wait_for(text)
        answer = self.wait_for("\n> ")
        self.shown = "> " + self.shown
        return answer

    def end(self) -> int:
        code = self.process.wait(timeout=WAIT_S)
        os.close(self.master)
        return code


def take_terminal() -> None:
    """Make stdin the controlling terminal, so that Ctrl-C is a signal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def talk(fake_command: list[str], fake_environment: Environment) -> Iterator[Callable[..., Talk]]:
    open_talks = []

    def start(*flags: str, script: dict[str, Any] | None = None) -> Talk:
        words = [*fake_command, "generate", "-m", "m.gguf", "-s", "1", "--chat", *flags]
        environment = fake_environment({"echo": True, "template": TEMPLATE} | (script or {}))
        open_talks.append(Talk(words, environment))
        return open_talks[-1]

    yield start
    for each in open_talks:
        each.process.kill()


def prompt_in(shown: str) -> str:
    """The prompt of the echoing script, with earlier answers shortened to X."""
    found = re.search(r'\{"prompt": "(.*)", "params"', shown, re.DOTALL)
    assert found is not None, shown
    return re.sub(r"\[a\|.*?\}\}\]", "[a|X]", found[1])


def test_the_whole_conversation_is_the_prompt(talk: Callable[..., Talk]) -> None:
    here = talk()
    assert prompt_in(here.say("one")) == r"\u0001[u|one]"
    assert prompt_in(here.say("two")) == r"\u0001[u|one][a|X][u|two]"
    assert "Forgotten." in here.say("/clear")
    assert prompt_in(here.say("three")) == r"\u0001[u|three]"
    here.wait_for("> ")
    here.type(CTRL_D)
    assert here.end() == 0


def test_channels_of_an_answer_do_not_reach_the_next_prompt(talk: Callable[..., Talk]) -> None:
    said = f"{THOUGHT}Hm.<|end|>{SAID}{FINAL}Yes"
    here = talk(script={"echo": False, "template": HARMONY, "pieces": [said]})
    for question in ("one", "two"):  # the template refuses an answer with its channels
        assert "<think>\nHm.\n</think>\n\nYes\n" in here.say(question)
    here.wait_for("> ")
    here.type(CTRL_D)
    assert here.end() == 0


def test_regen_asks_again_with_another_seed(talk: Callable[..., Talk]) -> None:
    here = talk()
    assert "There is no answer yet." in here.say("/regen")
    first, second = here.say("one"), here.say("/regen")
    assert prompt_in(first) == prompt_in(second) == r"\u0001[u|one]"
    assert '"seed": 1,' in first
    assert '"seed": 2,' in second
    assert "/regen  answer the last message again" in here.say("/what")
    here.wait_for("> ")
    here.type("/exit\r")
    assert here.end() == 0


def test_pasted_lines_and_backslashes_make_one_message(talk: Callable[..., Talk]) -> None:
    here = talk()
    for pasted in ("\x1b[200~one\ntwo\x1b[201~", "one\rtwo"):
        here.wait_for("> ")
        here.type(pasted + "\r")
        assert prompt_in(here.wait_for("tokens/s")).endswith(r"[u|one\ntwo]")
    here.wait_for("> ")
    here.type("one\\\r")
    here.wait_for("\n  ")
    here.type("two\r")
    assert prompt_in(here.wait_for("tokens/s")).endswith(r"[u|one\ntwo]")


def test_ctrl_c_stops_an_answer_and_not_the_talk(talk: Callable[..., Talk]) -> None:
    here = talk(script={"echo": False, "wait_once": True})
    here.wait_for("> ")
    here.type("one\r")
    here.wait_for("Hello world")
    here.interrupt()
    here.wait_for("stopped: interrupted\n> ")
    here.type("two\r")
    here.wait_for("stopped: limit\n> ")
    # Something typed is what Ctrl-C drops; on an empty line it takes two.
    here.type("half")
    here.wait_for("half")
    here.interrupt()
    here.wait_for("\n> ")
    here.interrupt()
    here.wait_for("Ctrl-C again leaves, as Ctrl-D does.\n> ")
    here.interrupt()
    assert here.end() == 130


def test_two_interrupts_leave(talk: Callable[..., Talk]) -> None:
    here = talk(script={"echo": False, "wait_once": True})
    here.wait_for("> ")
    here.type("one\r")
    here.wait_for("Hello world")
    here.interrupt()
    here.wait_for("stopped: interrupted\n> ")
    here.interrupt()
    assert here.end() == 130


def test_an_answer_that_never_began_has_no_statistics(talk: Callable[..., Talk]) -> None:
    here = talk(script={"stall": "slow"})
    assert "\n1 tokens in 4 ms" in here.say("one")
    here.wait_for("> ")
    here.type("slow\r")
    here.wait_for("reading")
    here.interrupt()
    here.wait_for("0 tokens in 0 ms, stopped: interrupted\n> ")
    here.type("two\r")
    assert prompt_in(here.wait_for("tokens/s")).endswith(r"[u|one][a|X][u|two]")


def test_what_cannot_be_answered_is_taken_back(talk: Callable[..., Talk]) -> None:
    here = talk(script={"refuse": "long"})
    refused = here.say("too long")
    assert "spec: error: too long\n" in refused
    assert "Your message was taken back." in refused
    assert prompt_in(here.say("short")) == r"\u0001[u|short]"


def test_quiet_and_verbose(talk: Callable[..., Talk]) -> None:
    quiet = talk("-q", script={"echo": False})
    assert quiet.wait_for("> ") == "> "
    quiet.type("one\r")
    assert quiet.wait_for("\n> ") == "one\nHello world\n> "
    verbose = talk("-v", script={"echo": False, "stats": {"cached_n": 2}})
    assert "prompt     1 tokens in 2 ms, 500.0 tokens/s, 2 more from the cache" in verbose.say("x")


def test_json_needs_a_prompt(talk: Callable[..., Talk]) -> None:
    here = talk("--json")
    here.wait_for("spec: error: --json and --jsonl need a prompt\n")
    assert here.end() == 2


def test_answers_go_to_a_file_and_nothing_else_does(
    fake_command: list[str], fake_environment: Environment
) -> None:
    """`spec generate --chat > answers`: the terminal keeps what is not the text."""
    master, slave = pty.openpty()
    words = [*fake_command, "generate", "-m", "m.gguf", "--chat"]
    process = subprocess.Popen(
        words, env=fake_environment({"template": TEMPLATE}), stdin=slave,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
    )  # fmt: skip
    os.close(slave)
    assert process.stderr is not None
    read_to(process.stderr, "> ")
    os.write(master, b"one\n")
    read_to(process.stderr, "> ")
    os.write(master, b"two\n")
    read_to(process.stderr, "> ")
    os.write(master, b"/exit\n")
    answers, _ = process.communicate(timeout=WAIT_S)
    os.close(master)
    assert (process.returncode, answers) == (0, "Hello world\nHello world\n")


def read_to(stream: IO[str], end: str) -> None:
    shown = ""
    while not shown.endswith(end):
        char = stream.read(1)
        assert char, shown
        shown += char


def test_a_model_with_a_template_is_talked_to(
    fake_command: list[str], fake_environment: Environment, tmp_path: Path
) -> None:
    """On a terminal, without a prompt and without --chat; the bundled model wants a prompt."""
    model = tmp_path / "instruct.gguf"
    shutil.copy(nano.path(), model)
    environment = fake_environment({"echo": True, "template": TEMPLATE})
    here = Talk([*fake_command, "generate", "-m", str(model), "-sys", "Be brief."], environment)
    assert prompt_in(here.say("one")) == r"\u0001[s|Be brief.][u|one]"
    here.wait_for("> ")
    here.type(CTRL_D)
    assert here.end() == 0
    gone = Talk([*fake_command, "generate", "-m", str(tmp_path / "gone.gguf")], environment)
    gone.wait_for("gone.gguf: cannot be read: No such file")
    assert gone.end() == 1
    bundled = Talk([*fake_command, "generate", "-m", "nano"], environment)
    bundled.wait_for("no prompt: give one as an argument")
    assert bundled.end() == 2
