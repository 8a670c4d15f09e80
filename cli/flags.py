"""Flags in groups: a command takes dataclasses, and their fields become its flags.

So that commands share flags, and `--help` shows forty of them in sections.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from dataclasses import MISSING, dataclass, field, fields
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, TypeVar, dataclass_transform, get_type_hints

import typer.core

from .llama_flags import CommandLine
from .plain_values import PlainParams

T = TypeVar("T")
REQUIRED: Final = MISSING
_UNSET: Final = object()
Values = Mapping[str, Any]  # of flags, by the names of their fields
_GIVEN: Final[ContextVar[Values]] = ContextVar("given", default=MappingProxyType({}))
_COMMAND: Final[ContextVar[Any]] = ContextVar("command")
_PARSED: Final[ContextVar[dict[str, Any] | None]] = ContextVar("parsed", default=None)
_SECTION: Final = "rich_help_panel"  # the name that typer has for a section of the help


class FlagField(NamedTuple):
    option: Any  # typer's description
    default: Any


def flag(spelling: str, help: str, default: Any = _UNSET, **more: Any) -> Any:
    """A flag as its help shows it: "--ctx-size -c N"; without a metavar it is a switch. `more`:
    limits, and whatever else `typer.Option` takes."""
    names = [word for word in spelling.split() if word.startswith("-")]
    metavar = next((word for word in spelling.split() if not word.startswith("-")), None)
    if metavar is not None and "|" in metavar:
        choices = metavar.split("|")
        more["autocompletion"] = lambda incomplete: _beginning_with(incomplete, choices)
    return FlagField(typer.Option(*names, metavar=metavar, help=help, **more), default)


def _beginning_with(begun: str, choices: Sequence[str]) -> list[str]:
    return [choice for choice in choices if choice.startswith(begun)]


def argument(metavar: str, help: str, default: Any = REQUIRED) -> Any:
    return FlagField(typer.Argument(metavar=metavar, help=help), default)


@dataclass_transform(frozen_default=True)
def flag_group(section: str, defaults: object = None) -> Callable[[type[T]], type[T]]:
    """Make a class of flags a frozen dataclass.

    `section`: where they stand in `--help`. `defaults`: an object with the defaults of the flags
    that set none; others are then off, or None.
    """

    def make(kind: type[T]) -> type[T]:
        for name, found in list(vars(kind).items()):
            if isinstance(found, FlagField):
                option, default = copy(found.option), found.default  # groups may share a flag
                setattr(option, _SECTION, section)
                if default is _UNSET:
                    default = getattr(defaults, name, None if option.metavar else False)
                setattr(kind, name, field(default=default, metadata={"option": option}))
        return dataclass(frozen=True, slots=True)(kind)

    return make


def takes_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Turn a function whose parameters are groups of flags into a command."""
    groups = {name: kind for name, kind in get_type_hints(function).items() if name != "return"}
    names = {name: [field.name for field in fields(kind)] for name, kind in groups.items()}

    def command(ctx: typer.Context, **values: Any) -> None:
        given = {name: value for name, value in values.items() if _is_given(ctx, name)}
        if (parsed := _PARSED.get()) is not None:
            parsed.update(given)
            return
        _GIVEN.set(given)
        _COMMAND.set(ctx.command)
        function(
            **{
                group: kind(**{name: values[name] for name in names[group]})
                for group, kind in groups.items()
            }
        )

    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    parameters = [context, *(each for kind in groups.values() for each in _parameters(kind))]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__doc__ = function.__doc__
    return command


def given_flags() -> frozenset[str]:
    """The names of the fields whose flags the running command was given."""
    return frozenset(_GIVEN.get())


def given_values() -> Values:
    """The same with what they were given."""
    return _GIVEN.get()


def running_command() -> Any:
    """typer's."""
    return _COMMAND.get()


def parse_given(command: Any, words: Sequence[str]) -> Values:
    """What a command line of the command gives, without running it."""
    found: dict[str, Any] = {}
    token = _PARSED.set(found)
    try:
        with command.make_context(command.name, list(words)) as context:
            command.invoke(context)
    finally:
        _PARSED.reset(token)
    return found


def fill(kind: type[T], values: Values) -> T:
    """The group with these values; its other flags have their defaults."""
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names if name in values})


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and not source.name.startswith("DEFAULT")


def _parameters(kind: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(kind)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=Annotated[hints[field.name], field.metadata["option"]],
        )
        for field in fields(kind)
    ]


class SectionedCommand(PlainParams, typer.core.TyperCommand):
    """Writes the help of its options section by section, in the order of their definition, and
    takes the command lines of llama.cpp's tools."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        line = CommandLine(ctx)
        with line.naming_variables():
            return super().parse_args(ctx, line.read(args))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                title = getattr(param, _SECTION, None) or "Other"
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)
