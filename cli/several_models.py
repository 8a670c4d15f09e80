"""`spec serve --models-dir` and `--models-preset`: the models of one server, and its run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import typer
from msgspec.structs import replace

from ..core.errors import ConfigError
from ..core.gguf.printable import printable_path
from .console import Console
from .flags import Values, parse_given
from .leaving import end_server, leave_at_signals
from .llama_flags import CommandLine
from .log import log_note
from .model_presets import EVERY, PresetLine, Sections, read_presets, shown
from .router_options import RouterOptions
from .serve_flags import ServeFlags
from .serve_options import open_listeners, settings_remarks
from .usage import UsageError, describe, failure_line

if TYPE_CHECKING:
    from ..core.server.router.downloads import HubAccess
    from ..core.server.router.routed_model import ModelPlan, Opened, Report
    from ..core.server.settings import ServerSettings
    from ..core.worker.worker import Loaded

_JOIN_S: Final = 0.5  # for the engines' threads to end
# Flags of the server, which presets cannot change.
_SERVERS: Final = frozenset(
    ("host", "port", "api_key", "api_key_file", "insecure", "cors_origins", "allowed_hosts",
     "ssl_key_file", "ssl_cert_file", "api_prefix", "reuse_port", "ui", "max_body", "timeout",
     "drain_seconds", "models_dir", "models_preset", "models_max", "models_memory",
     "models_autoload", "models_cache", "models_download", "replicas", "ray_address",
     "store_responses", "replica_cpus", "replica_gpus", "quiet", "verbose", "debug", "log_file",
     "log_format", "log_level", "log_texts", "hf_token", "offline")
)  # fmt: skip
_OF_ONE_MODEL: Final = ("model", "hf_repo", "hf_file", "alias", "mmproj")
_ALSO_FOR_ALL: Final = ("hf_token", "offline")


@dataclass(frozen=True)
class ModelList:
    """Reads which models there are: at the start, and for `/models?reload=1`."""

    router: RouterOptions
    given: Values  # on the command line
    command: Any  # typer's
    output: Console

    def read(self) -> list[ModelPlan]:
        """Raises a ConfigError that names the file and the section."""
        from ..core.hub.cached_models import cached_models
        from ..core.server.router.models_folder import find_models

        folder, preset = self.router.models_dir, self.router.models_preset
        sections = {} if preset is None else read_presets(preset)
        cached = cached_models() if self.router.uses_cache else {}
        files = cached | ({} if folder is None else find_models(folder))
        names = [*files, *(each for each in sections if each not in (*files, EVERY))]
        hidden: set[Path] = set()  # that a preset has, and says to list once
        found = [self._plan(name, files.get(name), sections, hidden) for name in names]
        plans = [self._placed(plan, cached, files, hidden) for plan in found]
        check_names(plans)
        n_max, pinned = self.router.models_max, [each.name for each in plans if each.is_pinned]
        if n_max and len(pinned) > n_max:
            raise ConfigError(f"--models-max {n_max} is less than the {len(pinned)} pinned models")
        return plans

    def _placed(
        self, plan: ModelPlan, cached: Mapping[str, Path], files: Mapping[str, Path],
        hidden: set[Path],
    ) -> ModelPlan:  # fmt: skip
        """With the source of a model that is in the hub's cache."""
        file = cached.get(plan.name)
        if file is None or plan.source == "preset" or files[plan.name] != file:
            return plan
        return replace(plan, source="cache", is_hidden=file in hidden)

    def _plan(
        self, name: str, file: Path | None, sections: Sections, hidden: set[Path]
    ) -> ModelPlan:
        from ..core.server.router.models_folder import n_bytes_of
        from ..core.server.router.routed_model import ModelPlan

        own = sections.get(name, [])
        lines = [*sections.get(EVERY, []), *own]
        where = f"{printable_path(self.router.models_preset or '')}: [{name}]"
        with _named(where if name in sections else name):
            extra = _Extra.of(lines)
            words = self._words(extra.others, where)
            values = dict(parse_given(self.command, words))
            if file is not None and not {"model", "hf_repo"} & set(values):
                values["model"] = file
            if not {"model", "hf_repo"} & set(values):
                raise ConfigError("names no model: give model = FILE or hf-repo = OWNER/NAME")
            values = {n: v for n, v in values.items() if n not in _SERVERS} | dict(self.given)
            flags = ServeFlags.of(values)
            settings = flags.settings()
            if extra.hides_cached:
                hidden |= _cached_files(values)
        model = values.get("model")
        path = None if model is None else Path(str(model))
        return ModelPlan(
            name=name,
            source="preset" if own else "models_dir",
            open=lambda: _open(flags, settings, name, self.output),
            aliases=tuple(each for each in settings.alias if each != name),
            tags=settings.tags,
            flags=(*words, *(() if path is None else ("--model", str(path)))),
            preset=shown(name, own) if own else "",
            n_bytes=0 if path is None or flags.place.device != "cpu" else n_bytes_of(path),
            is_pinned=extra.is_pinned,
            loads_at_start=extra.loads_at_start or extra.is_pinned,
            stop_s=settings.drain_s if extra.stop_s is None else extra.stop_s,
        )

    def _words(self, lines: list[PresetLine], where: str) -> tuple[str, ...]:
        """A key that comes again, in the model's section, replaces the earlier one."""
        line = CommandLine(self.command.make_context("serve", [], resilient_parsing=True))
        by_flag: dict[str, list[str]] = {}
        for each in lines:
            with _named(f"line {each.number}"):
                by_flag[line.field_of(each.key)] = line.words_of(each.key, each.value)
        self._remark_on(by_flag, where)
        return tuple(word for words in by_flag.values() for word in words)

    def _remark_on(self, names_given: Iterable[str], where: str) -> None:
        names = sorted(_SERVERS.difference(_ALSO_FOR_ALL).intersection(names_given))
        if names:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in names)
            self.output.remark(f"{where}: no effect here, of the whole server: {flags}")


class _Extra:
    """Keys of a preset that are no flags."""

    def __init__(self) -> None:
        self.is_pinned = self.loads_at_start = self.hides_cached = False
        self.stop_s: float | None = None
        self.others: list[PresetLine] = []

    @classmethod
    def of(cls, lines: list[PresetLine]) -> _Extra:
        found = cls()
        for each in lines:
            match each.key:
                case "pinned":
                    found.is_pinned = _switch(each)
                case "load-on-startup":
                    found.loads_at_start = _switch(each)
                case "stop-timeout":
                    if not each.value.isdecimal() or len(each.value) > 6:
                        raise ConfigError(
                            f"line {each.number}: stop-timeout must be a number of seconds, got "
                            f"{each.value!r:.60}"
                        )
                    found.stop_s = float(each.value)
                case "dedup-cache-models":
                    found.hides_cached = _switch(each)
                case _:
                    found.others.append(each)
        return found


def _cached_files(values: Values) -> set[Path]:
    """Files in the hub's cache that a model uses by their repository."""
    from ..core.hub.hub_models import HubModel, cached_path, parse_hub_name

    found = set()
    for name, file in (("hf_repo", values.get("hf_file")), ("draft_repo", None)):
        if (named := values.get(name)) is not None:
            repo, quant = parse_hub_name(str(named))
            with suppress(ConfigError):  # it is not there
                found.add(cached_path(HubModel(repo, quant, file)))
    return {path for path in found if path is not None}


def _switch(line: PresetLine) -> bool:
    if line.value.lower() not in ("true", "false", "on", "off", "1", "0"):
        raise ConfigError(
            f"line {line.number}: {line.key} must be true or false, got {line.value!r:.60}"
        )
    return line.value.lower() in ("true", "on", "1")


def check_names(plans: list[ModelPlan]) -> None:
    """A name or alias means one model."""
    seen: dict[str, str] = {}
    for plan in plans:
        for name in (plan.name, *plan.aliases):
            if name in seen:
                raise ConfigError(
                    f"{name!r:.80} is the name of two models, {seen[name]!r:.80} and "
                    f"{plan.name!r:.80}"
                )
            seen[name] = plan.name


def serve_models(
    router: RouterOptions, given: Values, command: Any, settings: ServerSettings,
    flags: ServeFlags, output: Console,
) -> NoReturn:  # fmt: skip
    from ..core.server.router.router_serving import RouterServing

    alone = [name for name in _OF_ONE_MODEL if name in given]
    if alone:
        name = alone[0].replace("_", "-")
        raise typer.BadParameter(
            f"--{name} is of one model: with --models-dir or --models-preset, give it in a section "
            "of the preset"
        )
    models = ModelList(router, given, command, output)
    try:
        plans = models.read()
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    sockets, url = open_listeners(flags.listen, settings)
    for line in settings_remarks(settings):
        output.remark(line)
    leave_at_signals()

    def ready() -> None:
        output.remark(f"ready      {url} ({len(plans)} models: {_some(plans)})")

    reads = iter([plans])
    serving = RouterServing(
        lambda: next(reads, None) or models.read(), router.pool(settings), settings, sockets,
        _hub_access(router, settings, flags), log_note, ready,
    )  # fmt: skip
    code = serving.run()
    has_ended = serving.close(_JOIN_S)
    if serving.n_signals > 1:
        code = 130
    end_server(code, has_ended=has_ended)


def _hub_access(router: RouterOptions, settings: ServerSettings, flags: ServeFlags) -> HubAccess:
    """Files beside a model are downloaded as -hf does."""
    from ..core.hub.hub_models import HubModel
    from ..core.server.router.downloads import HubAccess

    pattern = HubModel(
        "", token=flags.models.hf_token, offline=flags.models.offline,
        with_drafters=flags.spec.takes_companions, with_mmproj=flags.projector.is_looked_for,
    )  # fmt: skip
    return HubAccess(router.refusal(settings), pattern)


def _some(plans: list[ModelPlan], n: int = 5) -> str:
    names = [plan.name for plan in plans[:n]]
    return ", ".join([*names, *["..."] * (len(plans) > n)])


def _open(flags: ServeFlags, settings: ServerSettings, name: str, output: Console) -> Opened:
    with _load_errors():
        recipe, settings = flags.find(settings, output)

    def load(report: Report) -> Loaded:
        with _load_errors():
            return recipe.load(output.reporting_to(report))

    names = (name, *(each for each in settings.alias if each != name))
    return replace(settings, alias=names), load


@contextmanager
def _load_errors() -> Iterator[None]:
    """One line says why a model cannot be loaded."""
    from ..core.server.router.routed_model import LoadError

    try:
        yield
    except UsageError as error:
        raise LoadError(describe(error), is_short_of_memory=_is_memory(error)) from None
    except Exception as error:  # noqa: BLE001 - one line reaches the client
        raise LoadError(failure_line(error), is_short_of_memory=_is_memory(error)) from None


def _is_memory(error: BaseException | None) -> bool:
    from ..core.state.budget import TooLargeError, WeightsTooLargeError

    while error is not None:
        if isinstance(error, TooLargeError | WeightsTooLargeError | MemoryError):
            return True
        error = error.__context__
    return False


@contextmanager
def _named(where: str) -> Iterator[None]:
    """A usage error inside says where it is."""
    try:
        yield
    except UsageError as error:
        raise ConfigError(f"{where}: {describe(error)}") from None
    except (ConfigError, FileNotFoundError) as error:
        raise ConfigError(f"{where}: {failure_line(error)}") from None
