"""The flags of `spec serve`, and the settings that they come to. Names follow llama-server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from ..core.errors import ConfigError
from .sampling_options import RANDOM_SEED, SamplingOptions
from .shared_options import UNLIMITED

if TYPE_CHECKING:
    from ..core.server.settings import ServerSettings

DEFAULT_PORT: Final = 8080
_MIB: Final = 1 << 20


def flag(*names: str, metavar: str | None = None, help: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, **more)


@dataclass(frozen=True, slots=True)
class ListenOptions:
    SECTION: ClassVar = "Server"

    host: Annotated[str, flag("--host", metavar="ADDRESS", help="Address to listen on.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, flag("--port", metavar="N", min=0, max=65535, help="Port; 0: any free one.")
    ] = DEFAULT_PORT
    parallel: Annotated[
        int,
        flag(
            "--parallel", "-np", metavar="N", min=-1, max=256,
            help="Number of sequences that run at the same time, each with a context of its own; "
            "-1: 4, or fewer if memory is short.",
        ),
    ] = -1  # fmt: skip
    alias: Annotated[
        str | None,
        flag("--alias", "-a", metavar="A,B", help="Names of the model; the first one is shown."),
    ] = None
    api_key: Annotated[
        list[str] | None,
        flag(
            "--api-key", metavar="A,B",
            help="Keys, one of which every request needs (or SPEC_API_KEY).",
        ),
    ] = None  # fmt: skip
    api_key_file: Annotated[
        Path | None, flag("--api-key-file", metavar="FILE", help="File of keys, one on each line.")
    ] = None
    insecure: Annotated[
        bool, flag("--insecure", help="Access from other machines without a key.")
    ] = False
    cors_origins: Annotated[
        str | None,
        flag(
            "--cors-origins", metavar="A,B",
            help="Origins of web pages that may send requests, besides this machine's; *: all.",
        ),
    ] = None  # fmt: skip
    allowed_hosts: Annotated[
        str | None,
        flag(
            "--allowed-hosts",
            metavar="A,B",
            help="Host names under which a proxy reaches this server.",
        ),
    ] = None
    ssl_key_file: Annotated[
        Path | None, flag("--ssl-key-file", metavar="FILE", help="Private key, for HTTPS.")
    ] = None
    ssl_cert_file: Annotated[
        Path | None, flag("--ssl-cert-file", metavar="FILE", help="Certificate of --ssl-key-file.")
    ] = None


@dataclass(frozen=True, slots=True)
class LimitOptions:
    SECTION: ClassVar = "Server"

    metrics: Annotated[bool, flag("--metrics", help="Endpoint /metrics, for Prometheus.")] = False
    slots: Annotated[
        bool, typer.Option("--slots/--no-slots", help="Endpoint /slots, with the running requests.")
    ] = True
    ui: Annotated[
        bool, typer.Option("--ui/--no-ui", "--webui/--no-webui", help="Web page at /.")
    ] = True
    predict: Annotated[
        int,
        flag(
            "--predict", "--n-predict", "-n", metavar="N", min=-1,
            help="Maximum number of tokens of a response; -1: until the context is full.",
        ),
    ] = UNLIMITED  # fmt: skip
    max_queue: Annotated[
        int,
        flag(
            "--max-queue",
            metavar="N",
            min=0,
            help="Maximum number of waiting requests; beyond it, status 503.",
        ),
    ] = 512
    max_body: Annotated[
        int, flag("--max-body", metavar="MIB", min=1, help="Maximum size of a request, in MiB.")
    ] = 16
    timeout: Annotated[
        int,
        flag(
            "--timeout", "-to", metavar="S", min=1,
            help="Seconds until a client that neither sends nor reads is disconnected.",
        ),
    ] = 60  # fmt: skip


@dataclass(frozen=True, slots=True)
class CacheOptions:
    SECTION: ClassVar = "Cache"

    cache_prompt: Annotated[
        bool,
        typer.Option(
            "--cache-prompt/--no-cache-prompt",
            help="Use of the prefix cache by requests that do not set cache_prompt.",
        ),
    ] = True
    cache_ram: Annotated[
        int,
        flag(
            "--cache-ram", "-cram", metavar="MIB", min=-1,
            help="Memory of the prefix cache in MiB, beside the contexts; 0: no cache; -1: what "
            "contexts do not use, and two recurrent states for each.",
        ),
    ] = -1  # fmt: skip
    slot_save_path: Annotated[
        Path | None,
        flag("--slot-save-path", metavar="DIR", help="Folder for saved slots."),
    ] = None
    context_shift: Annotated[
        bool,
        typer.Option(
            "--context-shift/--no-context-shift",
            help="Accepted, and always off: a response ends when its context is full.",
        ),
    ] = False
    sleep_idle_seconds: Annotated[
        int,
        flag(
            "--sleep-idle-seconds", metavar="S", min=-1,
            help="Seconds without a request until the model's memory is freed; the next request "
            "loads it again. -1: never.",
        ),
    ] = -1  # fmt: skip

    def __post_init__(self) -> None:
        if not self.sleep_idle_seconds:
            raise typer.BadParameter("--sleep-idle-seconds must be at least 1, or -1 for never")
        if self.slot_save_path is not None and not self.cache_ram:
            raise typer.BadParameter("--slot-save-path saves what --cache-ram 0 does not keep")

    @property
    def warning(self) -> str | None:
        if not self.context_shift:
            return None
        return "--context-shift is ignored: a response ends when its context is full (length)"

    @property
    def room(self) -> int | None:
        """Bytes of --cache-ram."""
        return None if self.cache_ram < 0 else self.cache_ram * _MIB


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    SECTION: ClassVar = "Chat"

    chat_template: Annotated[
        str | None,
        flag(
            "--chat-template", metavar="NAME",
            help="Chat template: chatml, or the name of another one in the model's file.",
        ),
    ] = None  # fmt: skip
    chat_template_file: Annotated[
        Path | None, flag("--chat-template-file", metavar="FILE", help="File of a Jinja template.")
    ] = None
    chat_template_kwargs: Annotated[
        str | None,
        flag(
            "--chat-template-kwargs", metavar="JSON",
            help="""Switches of the template, such as '{"enable_thinking": false}'.""",
        ),
    ] = None  # fmt: skip
    jinja: Annotated[bool, flag("--jinja", help="Accepted, and always on.")] = False
    reasoning_format: Annotated[
        str,
        flag(
            "--reasoning-format", metavar="FORMAT",
            help="Place of thoughts: none (in the text), deepseek (in reasoning_content; also "
            "auto), deepseek-legacy (both).",
        ),
    ] = "auto"  # fmt: skip


def build_settings(
    listen: ListenOptions,
    limits: LimitOptions,
    cache: CacheOptions,
    templates: TemplateOptions,
    sampling: SamplingOptions,
    switches: dict[str, Any],
) -> ServerSettings:
    """What is wrong with them is a usage error."""
    from ..core.server.settings import ServerSettings
    from ..core.server.slot_folder import check_folder

    if listen.parallel == 0:
        raise typer.BadParameter("--parallel must be at least 1, or -1, got 0")
    for path in (listen.ssl_key_file, listen.ssl_cert_file):
        if path is not None and not path.is_file():
            raise FileNotFoundError(2, "no such file", str(path))
    try:
        if cache.slot_save_path is not None:
            check_folder(cache.slot_save_path)
        return ServerSettings(
            host=listen.host,
            api_keys=read_keys(listen),
            is_open=listen.insecure,
            allowed_hosts=tuple(name.lower() for name in _parts(listen.allowed_hosts)),
            cors_origins=_parts(listen.cors_origins),
            alias=_parts(listen.alias),
            with_metrics=limits.metrics,
            with_slots=limits.slots,
            with_page=limits.ui,
            sampling=sampling.params(),
            seed=None if sampling.seed == RANDOM_SEED else sampling.seed,
            max_tokens=None if limits.predict < 0 else limits.predict,
            max_queue=limits.max_queue,
            max_body=limits.max_body * _MIB,
            io_s=limits.timeout,
            slot_folder=cache.slot_save_path,
            caches_prompts=cache.cache_prompt,
            sleep_s=max(cache.sleep_idle_seconds, 0),
            template_kwargs=tuple(switches.items()),
            reasoning_format=templates.reasoning_format,
            ssl_key=_path(listen.ssl_key_file),
            ssl_cert=_path(listen.ssl_cert_file),
        )
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None


def read_keys(listen: ListenOptions) -> tuple[str, ...]:
    given = [*(listen.api_key or ()), os.environ.get("SPEC_API_KEY", "")]
    keys = [key for text in given for key in _parts(text)]
    if listen.api_key_file is not None:
        lines = listen.api_key_file.read_text(encoding="utf-8").splitlines()
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise typer.BadParameter(f"--api-key-file: {listen.api_key_file} holds no key")
        keys += found
    return tuple(keys)


def _parts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
