"""Command lines of llama-server, llama-cli and llama-speculative-simple, word by word.

What these tools have and a command here has not is looked up in `llama_flag_table`: it is accepted
with a note on stderr, becomes a flag of ours, or is refused with what to use instead. Their rules
hold: no clusters of short flags (`-ngl` is one flag, not three), underscores count as dashes.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import typer

from .usage import UsageError, unknown_option

if TYPE_CHECKING:
    from .llama_flag_table import Row

_TOOLS: Final = {"serve": "S", "generate": "C", "speculative-simple": "P"}
_ON: Final = ("on", "enabled", "true", "1")
_OFF: Final = ("off", "disabled", "false", "0")
_ATTACHED: Final = re.compile(r"(-[A-Za-z])([0-9][0-9.]*)")  # -n16
_LLAMA: Final = "LLAMA_"
_PREFIX: Final = "LLAMA_ARG_"
_IGNORED: Final[ContextVar[Mapping[str, str]]] = ContextVar("ignored", default=MappingProxyType({}))


def ignored_flags() -> Mapping[str, str]:
    """The given flags that are accepted and have no effect, and why."""
    return _IGNORED.get()


class CommandLine:
    """The words of one command line, for a command whose flags are `known`."""

    def __init__(self, context: Any, environment: Mapping[str, str] = os.environ) -> None:
        self._context = context
        command = context.command
        self._tool = _TOOLS.get(command.name, "")
        self._known: dict[str, Any] = {
            name: param for param in command.params for name in (*param.opts, *param.secondary_opts)
        }
        self._known |= dict.fromkeys(context.help_option_names)
        self._environment = {
            name: value
            for name, value in environment.items()
            if self._tool and name.startswith(_LLAMA)
        }
        self._variables: dict[str, str] = {}  # that set a parameter, by its name
        self._ignored: dict[str, str] = {}

    @contextmanager
    def naming_variables(self) -> Iterator[None]:
        """An error inside names the variable that a wrong value is from."""
        try:
            yield
        except UsageError as error:
            param = getattr(error, "param", None)
            variable = None if param is None else self._variables.get(param.name)
            if variable is not None:
                error.message += f" (set by {variable})"  # type: ignore[attr-defined]
            raise

    @cached_property
    def _rows(self) -> dict[str, Row]:
        """Flags of the tool. The table is imported where one is given: it takes 5 ms."""
        if not self._tool:
            return {}
        from .llama_flag_table import ROWS

        return {name: row for row in ROWS if self._tool in row.tools for name in row.names}

    def read(self, words: list[str]) -> list[str]:
        """The same for a parser that knows the command's own flags alone."""
        found = list(self._expand(deque(words)))
        found = [*self._from_environment(found), *found]
        _IGNORED.set(self._ignored)
        return found

    def words_of(self, key: str, value: str) -> list[str]:
        """Those of a line of a preset: a name without dashes, or a variable, and a value."""
        name = self._spelled(key)
        param, row = self._known.get(name), None if name in self._known else self._rows[name]
        if _takes_value(param) or (row is not None and row.n_values):
            return [f"{name}={value}"] if name.startswith("--") else [name, value]
        if value not in (*_ON, *_OFF):
            raise typer.BadParameter(f"{key} must be true or false, got {value!r:.60}")
        if value in _ON:
            return [name]
        others = [] if param is None else [*param.opts, *param.secondary_opts]
        is_off = name.startswith("--no-")
        wanted = name.replace("--no-", "--", 1) if is_off else name.replace("--", "--no-", 1)
        return [wanted] if wanted in others or (row and wanted in self._rows) else []

    def field_of(self, key: str) -> str:
        """What the line sets: the name of a field, or llama.cpp's flag."""
        name = self._spelled(key)
        return str(self._known[name].name) if name in self._known else self._rows[name].names[0]

    def _spelled(self, key: str) -> str:
        from .llama_flag_table import ENVIRONMENT

        if key in ENVIRONMENT:
            return ENVIRONMENT[key]
        for name in (f"--{key.replace('_', '-')}", f"-{key}"):
            if self._known.get(name) is not None or name in self._rows:
                return name
        hint = unknown_option(f"--{key}", self._context).removeprefix(f"no such option --{key}")
        raise typer.BadParameter(f"no flag is called {key!r:.60}{hint}")

    def _expand(self, words: deque[str]) -> Iterator[str]:
        while words:
            word = words.popleft()
            if word == "--":
                yield from (word, *words)
                return
            name, equals, value = word.partition("=")
            if name.startswith("--"):
                name = name.replace("_", "-")
            if len(word) < 2 or not word.startswith("-"):
                yield word
            elif name in self._known:
                yield name + equals + value
                if not equals and _takes_value(self._known[name]) and words:
                    yield words.popleft()
            elif name in self._rows:
                yield from self._translate(name, [value] if equals else [], words)
            elif name.startswith("--"):
                yield word  # the parser says what is wrong
            elif (attached := _ATTACHED.fullmatch(word)) and attached[1] in self._known:
                yield from attached.groups()
            else:
                raise typer.BadParameter(unknown_option(name, self._context))

    def _translate(self, name: str, values: list[str], words: deque[str]) -> list[str]:
        row = self._rows[name]
        while len(values) < row.n_values:
            if not words:
                raise typer.BadParameter(f"{name} needs a value: {row.metavar}")
            values.append(words.popleft())
        if len(values) > row.n_values:
            raise typer.BadParameter(f"{name} takes no value")
        for value in values:
            if not row.accepts(value):
                raise typer.BadParameter(f"invalid value for {name}: {value!r} is not {row.wants}")
        if row.instead:
            raise typer.BadParameter(f"{name} is not supported: {row.instead}")
        if row.note:
            self._ignored[name] = row.note
        return row.ours(*values)

    def _from_environment(self, given: list[str]) -> Iterator[str]:
        """Flags from variables, in front of those of the command line, which thus overrule them."""
        if not self._environment:
            return
        from .llama_flag_table import ENVIRONMENT

        used = {word.partition("=")[0] for word in given if word.startswith("-")}
        for variable, name in ENVIRONMENT.items():
            param = self._known.get(name)
            if param is None or not used.isdisjoint((*param.opts, *param.secondary_opts)):
                continue
            off = variable.replace(_PREFIX, f"{_PREFIX}NO_", 1)
            if param.secondary_opts and off in self._environment:
                yield param.secondary_opts[0]
            elif variable in self._environment:
                yield from self._variable(variable, name, param)

    def _variable(self, variable: str, name: str, param: Any) -> list[str]:
        value = self._environment[variable]
        self._variables[param.name] = variable
        if _takes_value(param):
            return [f"{name}={value}"]
        if value not in (*_ON, *_OFF):
            raise typer.BadParameter(f"{variable} must be on or off, got {value!r}")
        return [name] if value in _ON else list(param.secondary_opts[:1])


def _takes_value(param: Any) -> bool:
    switches = ("is_flag", "count")
    return param is not None and not any(getattr(param, name, False) for name in switches)
