"""A type checker sees the library's types, from a plain and from an editable installation."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", ".types", "cli", "convert", "core",
           "cuda_kernels")  # fmt: skip
SCRIPT = """
import nextn
model = nextn.load("model.gguf", parallel=2)
reveal_type(model)
result = model.generate("x", max_tokens=3, temperature=0.5)
reveal_type(result.text)
for piece in model.stream("x"):
    reveal_type(piece.logprob)
options = nextn.GenerationOptions(top_k=5)
model.chat([{"role": "user", "content": "x"}], **options)
model.generate("x", max_tokens="3")
model.generate("x", temprature=1)
nextn.load(n_ctx="4096")
"""
WANTED = {
    4: r'note: Revealed type is "nextn\.core\.api\.language_model\.LanguageModel"',
    6: r'note: Revealed type is "(builtins\.)?str"',
    8: r'note: Revealed type is "(builtins\.)?float \| None"',
    11: r'error: Argument "max_tokens" .*has incompatible type "str"; expected "int \| None"',
    12: r'error: Unexpected keyword argument "temprature"',
    13: r'error: Argument "n_ctx" .*has incompatible type "str"; expected "int \| None"',
}


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--editable"]], ids=["plain", "editable"])
def test_a_checker_sees_the_types(flags: list[str], tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    source, venv, script = tmp_path / "source", tmp_path / "venv", tmp_path / "script.py"
    source.mkdir()
    for name in SHIPPED:  # a copy: setuptools leaves files behind in the folder that it installs
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True)
        else:
            shutil.copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (python,) = map(str, [*venv.glob("bin/python"), *venv.glob("Scripts/python.exe")])
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps"]
    subprocess.run([*pip, *flags, str(source)], check=True)
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "mypy", "--python-executable", python, "--strict"]
    done = subprocess.run(
        [*command, "--cache-dir", str(tmp_path / "cache"), str(script)],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    lines = re.findall(r"^script\.py:(\d+): (?!note: .* defined)(.*)$", done.stdout, re.MULTILINE)
    found = {int(line): said for line, said in lines}
    assert set(found) == set(WANTED), done.stdout + done.stderr
    for line, want in WANTED.items():
        assert re.match(want, found[line]), found[line]
