"""Options in groups: a command takes dataclasses, and their fields become its flags.

So that commands share flags, and `--help` shows forty of them in sections.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import MISSING, fields
from typing import Annotated, Any, get_args, get_type_hints

import typer.core

SECTION = "SECTION"  # name of the class variable that says where in `--help` the flags stand


def takes_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Every parameter of `function` is a dataclass whose fields are annotated with options."""
    groups = {name: kind for name, kind in get_type_hints(function).items() if name != "return"}
    names = {name: [field.name for field in fields(kind)] for name, kind in groups.items()}

    def command(**values: Any) -> None:
        function(
            **{
                group: kind(**{name: values[name] for name in names[group]})
                for group, kind in groups.items()
            }
        )

    parameters = [parameter for kind in groups.values() for parameter in _parameters(kind)]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__ = function.__doc__
    return command


def _parameters(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        kept, *infos = get_args(hints[field.name])
        own = [copy(info) for info in infos]  # another group may share the flag
        for info in own:
            info.rich_help_panel = getattr(kind, SECTION)
        hints[field.name] = Annotated[kept, *own]
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(kind)
    ]


class SectionedCommand(typer.core.TyperCommand):
    """Writes the help of its options section by section, in the order of their definition."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                title = getattr(param, "rich_help_panel", None) or "Other"
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
