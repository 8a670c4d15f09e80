"""The name of a model's numbers, by which saved states know it."""

from __future__ import annotations

import subprocess
import sys

from nextn.core import nano
from nextn.core.gguf.reader import open_gguf
from nextn.core.state.fingerprint import model_fingerprint

ASK = """
from nextn.core import nano
from nextn.core.gguf.reader import open_gguf
from nextn.core.state.fingerprint import model_fingerprint
print(model_fingerprint(open_gguf(nano.path())))
"""


def test_another_process_finds_the_same() -> None:
    found = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True)
    with open_gguf(nano.path()) as file:
        assert found.stdout.strip() == model_fingerprint(file)
