"""`spec generate --chat` with a message: through the template, once."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nextn.cli.app import run

Run = Callable[..., subprocess.CompletedProcess[str]]
CHAT = ("generate", "-m", "m.gguf", "--chat")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
    "{% if think is defined %}think={{ think }}{% endif %}{{ 'GO' if add_generation_prompt }}"
)


def prompt_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    prompt: str = json.loads(done.stdout)["prompt"]
    return prompt


@pytest.mark.parametrize(
    ("flags", "prompt"),
    [
        ((), "\1[user|hi]GO"),
        (("-sys", "be kind"), "\1[system|be kind][user|hi]GO"),
        (("--chat-template-kwargs", '{"think": 3}'), "\1[user|hi]think=3GO"),
        (("--chat-template", "{{ messages[0].content }}!"), "\1hi!"),
        (
            ("--chat-template", "chatml"),
            "\1<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_the_prompt_goes_through_the_template(
    spec: Run, flags: tuple[str, ...], prompt: str
) -> None:
    script = {"echo": True, "template": TEMPLATE}
    assert prompt_of(spec(*CHAT, *flags, "hi", script=script)) == prompt
    assert prompt_of(spec(*CHAT, *flags, stdin="hi\n", script=script)) == prompt


def test_template_and_system_prompt_from_files(spec: Run, tmp_path: Path) -> None:
    template, system = tmp_path / "a.jinja", tmp_path / "b.txt"
    template.write_text("{{ messages[0].content }}/{{ messages[1].content }}\n")
    system.write_text("be kind\n")
    flags = ("--chat-template-file", str(template), "-sysf", str(system))
    # The template does not write the first token: it is put there.
    assert prompt_of(spec(*CHAT, *flags, "hi", script={"echo": True})) == "\1be kind/hi"


def test_no_template_is_one_line_that_says_what_to_do(spec: Run) -> None:
    done = spec(*CHAT, "hi")
    assert (done.returncode, done.stdout) == (1, "")
    advice = "give one with --chat-template-file FILE, try --chat-template chatml, or leave --chat"
    assert done.stderr.startswith(f"spec: error: m.gguf has no chat template; {advice}")
    assert done.stderr.count("\n") == 1
    named = spec(*CHAT, "--chat-template", "rag", "hi", script={"template": TEMPLATE})
    assert "m.gguf has no chat template called 'rag'" in named.stderr


@pytest.mark.parametrize(
    "template", ["{% if %}", "{{ raise_exception('no\x1b system') }}", "{{ 1 / 0 }}"]
)
def test_a_template_that_fails_is_one_line(spec: Run, template: str) -> None:
    done = spec(*CHAT, "hi", script={"template": template})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("spec: error: chat template: line 1: ")
    assert done.stderr.count("\n") == 1
    assert "\x1b" not in done.stderr


def test_a_reserved_switch_is_refused(spec: Run) -> None:
    flags = ("--chat-template-kwargs", '{"messages": []}')
    done = spec(*CHAT, *flags, "hi", script={"template": TEMPLATE})
    assert done.returncode == 1
    assert "'messages': it is reserved" in done.stderr


def test_a_real_file_with_a_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from support.tiny_models import build_tiny

    def add_template(keys: dict[str, Any], _tensors: dict[str, Any]) -> None:
        keys["tokenizer.chat_template"] = "<|im_start|>{{ messages[0].content }}<|im_end|>"

    path = str(build_tiny("qwen3", tmp_path, edit=add_template).path)
    words = ["generate", "-m", path, "-n", "9", "-s", "1", "--json"]
    assert run([*words, "--chat", "hello there"]) == 0
    chatted = json.loads(capsys.readouterr().out)
    assert run([*words, "<|im_start|>hello there<|im_end|>"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert chatted["tokens"] == plain["tokens"]
    assert chatted["prompt_n"] == plain["prompt_n"]
