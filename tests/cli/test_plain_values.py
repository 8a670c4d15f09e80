"""Values of flags without typer's validators: the same ones, and none of its imports."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.core

from nextn.cli.app import COMMANDS
from nextn.cli.lazy_group import load

WORDS = ["", "0", "7", "-3", "+4", " 5", "1_0", "0x1f", "1e3", "1.5", ".5", "-.5e-2", "5.", "nan",
         "inf", "٣", "two", "1" * 30, "a,b", "-", "ä\udcff"]  # fmt: skip


def outcome(param: Any, kind: Any, value: Any) -> Any:
    """What a class of parameters makes of a value: the value, or the message."""
    context = typer.Context(typer.core.TyperCommand("x"))
    try:
        return kind.process_value(param, context, value)
    except typer.BadParameter as error:
        return error.format_message()


def parameters() -> list[Any]:
    """One of each type and limits, of all commands."""
    found: dict[Any, Any] = {}
    for name, row in COMMANDS.items():
        if name != "convert":
            for param in load(name, row).params:
                described = param.type_descriptor
                limits = described.parameter_info
                found[str(described.annotation), param.multiple if hasattr(param, "multiple") else
                      None, limits.min, limits.max] = param  # fmt: skip
    return list(found.values())


@pytest.mark.parametrize("param", parameters(), ids=lambda param: param.name)
def test_values_are_those_of_typer(param: Any) -> None:
    given = [[word] for word in WORDS] if getattr(param, "multiple", False) else WORDS
    checked = type(param).__mro__[1]
    assert checked in (typer.core.TyperOption, typer.core.TyperArgument)
    for value in (*given, None, param.default):
        if param.type_descriptor.annotation is bool and isinstance(value, str):
            continue  # switches take no value
        ours, theirs = (outcome(param, kind, value) for kind in (type(param), checked))
        both_nan = isinstance(ours, float) and math.isnan(ours) and math.isnan(theirs)
        assert both_nan or (ours == theirs and type(ours) is type(theirs)), value


def test_a_right_command_line_needs_no_validators(tmp_path: Path) -> None:
    script = (
        "import sys; from nextn.cli.app import run; "
        f"run(['generate', '-m', {str(tmp_path / 'gone')!r}, '-n', '3', '--temp', '0.5', '-r', "
        "'x', '-q', 'hi']); sys.exit('pydantic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert (done.returncode, b"No such file" in done.stderr) == (0, True), done.stderr
