"""Ctrl-C while `spec` is still importing itself."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The import of the named module raises an interrupt, as from a terminal.
INTERRUPTED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from nextn.cli.start import main
sys.argv = ["spec", {command!r}, "--help"]
main()
"""


@pytest.mark.parametrize(
    ("name", "command"),
    [("typer", "warmup"), ("nextn.cli.generate", "generate"), ("nextn.cli.warmup", "warmup")],
)
def test_an_interrupted_import_leaves_no_traceback(name: str, command: str) -> None:
    program = INTERRUPTED.format(name=name, command=command)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
