"""The flags of `spec serve`, and the settings that they come to. Names follow llama-server."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from .console import Console
from .context_options import ContextOptions
from .flags import flag, flag_group
from .generate_params import read_grammar, read_schema
from .log import LEVELS
from .prompt_source import unescaped
from .sampling_options import RANDOM_SEED, SamplingOptions
from .shared_options import (
    REASONING,
    REASONING_BUDGET,
    REASONING_EFFORT,
    REASONING_MESSAGE,
    UNLIMITED,
    VoiceOptions,
)
from .usage import flag_errors

if TYPE_CHECKING:
    from socket import socket

    from ..core.server.settings import ServerSettings
    from .shared_options import PlaceOptions, RuleOptions

DEFAULT_PORT: Final = 8080
_MIB: Final = 1 << 20


@flag_group("Server")
class ListenOptions:
    host: str = flag(
        "--host A,B",
        "Addresses to listen on; a path that ends in .sock, or unix:PATH, is a Unix socket for "
        "this user and group.",
        "127.0.0.1",
    )
    port: int = flag("--port N", "Port; 0: any free one.", DEFAULT_PORT, min=0, max=65535)
    parallel: int = flag(
        "--parallel -np N",
        "Number of sequences that run at the same time, which share --ctx-size as in llama-server; "
        "-1: 4, or fewer if memory is short, each with all of it.",
        -1,
        min=-1,
        max=256,
    )
    kv_unified: bool = flag(
        "--kv-unified/--no-kv-unified -kvu",
        "All of --ctx-size for each of --parallel sequences instead of a share.",
    )
    alias: str | None = flag(
        "--alias -a A,B", "Names of the model; the first in the alphabet is its id."
    )
    tags: str | None = flag("--tags A,B", "Words about the model, shown in /v1/models.")
    api_key: list[str] | None = flag(
        "--api-key A,B", "Keys, one of which every request needs (or SPEC_API_KEY)."
    )
    api_key_file: Path | None = flag(
        "--api-key-file FILE", "File of keys, one a line; # begins comments."
    )
    insecure: bool = flag("--insecure", "Access from other machines without a key.")
    cors_origins: str | None = flag(
        "--cors-origins A,B",
        "Origins of web pages that may send requests, besides this machine's; app://*: all of a "
        "scheme; *: all.",
    )
    allowed_hosts: str | None = flag(
        "--allowed-hosts A,B",
        "Names under which proxies or containers reach this server, as host.docker.internal.",
    )
    api_prefix: str = flag("--api-prefix PREFIX", "Beginning of all paths, such as /llm.", "")
    reuse_port: bool = flag(
        "--reuse-port", "A port that other processes listen on as well, and share its connections."
    )
    ssl_key_file: Path | None = flag("--ssl-key-file FILE", "Private key, for HTTPS.")
    ssl_cert_file: Path | None = flag("--ssl-cert-file FILE", "Certificate of --ssl-key-file.")


@flag_group("Server")
class LimitOptions:
    metrics: bool = flag("--metrics", "Endpoint /metrics, for Prometheus.")
    slots: bool = flag("--slots/--no-slots", "Endpoint /slots, with the running requests.", True)
    props: bool = flag("--props", "Change of default sampling values by POST /props.")
    ui: bool = flag("--ui/--no-ui --webui/--no-webui", "Web page at /.", True)
    predict: int = flag(
        "--predict --n-predict -n N",
        "Maximum number of tokens where a request sets none; -1: until the context is full.",
        UNLIMITED,
        min=-1,
    )
    max_queue: int = flag(
        "--max-queue N", "Maximum number of waiting requests; beyond it, status 503.", 512, min=0
    )
    max_body: int = flag("--max-body MIB", "Maximum size of a request, in MiB.", 16, min=1)
    timeout: int = flag(
        "--timeout -to S",
        "Seconds until a client that neither sends nor reads is disconnected.",
        60,
        min=1,
    )
    drain_seconds: int = flag(
        "--drain-seconds S",
        "Seconds that open requests may take when the server is to end; a second signal ends it "
        "at once.",
        30,
        min=0,
    )
    store_responses: bool = flag(
        "--store-responses/--no-store-responses",
        "Responses of /v1/responses in memory, for previous_response_id; without it none is kept, "
        "whatever a request says.",
        True,
    )
    media_path: Path | None = flag(
        "--media-path DIR",
        "Folder of images that requests may name, as file://photos/cat.jpg; others have to bring "
        "theirs.",
    )
    record: Path | None = flag(
        "--record DIR",
        "Folder for the tokens of requests that say store: true, to train drafters on.",
    )
    record_all: bool = flag(
        "--record-all", "With --record, also those of requests that do not say store: false."
    )
    record_budget: int = flag(
        "--record-budget MIB",
        "Most that recorded requests take; the oldest are removed.",
        256,
        min=1,
    )


@flag_group("Output")
class LogOptions:
    log_format: str = flag(
        "--log-format text|json", "Form of the lines on stderr: text, or JSON objects.", "text"
    )
    log_level: str | None = flag(
        "--log-level LEVEL",
        "Least level of the log's lines: debug (also probes of /health and /metrics), info (a line "
        "for each request), warning (refused ones) or error; info if not given, error with "
        "--quiet.",
    )
    log_texts: bool = flag(
        "--log-texts", "Prompts and texts in the log of requests; they are not there otherwise."
    )

    def __post_init__(self) -> None:
        for name, value, known in (
            ("--log-format", self.log_format, ("text", "json")),
            ("--log-level", self.log_level, (None, *LEVELS)),
        ):
            if value not in known:
                raise typer.BadParameter(
                    f"{name} must be one of {', '.join(filter(None, known))}, got {value!r:.60}"
                )

    def console(self, voice: VoiceOptions) -> Console:
        level = self.log_level or ("error" if voice.quiet else "info")
        return voice.console(log_level=level, as_json=self.log_format == "json")


@flag_group("Cache")
class CacheOptions:
    cache_prompt: bool = flag(
        "--cache-prompt/--no-cache-prompt",
        "Use of the prefix cache by requests that do not set cache_prompt.",
        True,
    )
    cache_ram: int = flag(
        "--cache-ram -cram MIB",
        "Memory of the prefix cache in MiB, beside the contexts; 0: no cache; -1: what contexts "
        "do not use, and two recurrent states for each.",
        -1,
        min=-1,
    )
    slot_save_path: Path | None = flag("--slot-save-path DIR", "Folder for saved slots.")
    sleep_idle_seconds: int = flag(
        "--sleep-idle-seconds S",
        "Seconds without a request until the model's memory is freed; the next request loads it "
        "again. -1: never.",
        -1,
        min=-1,
    )

    def __post_init__(self) -> None:
        if not self.sleep_idle_seconds:
            raise typer.BadParameter("--sleep-idle-seconds must be at least 1, or -1 for never")
        if self.slot_save_path is not None and not self.cache_ram:
            raise typer.BadParameter("--slot-save-path saves what --cache-ram 0 does not keep")

    @property
    def room(self) -> int | None:
        """Bytes of --cache-ram."""
        return None if self.cache_ram < 0 else self.cache_ram * _MIB


@flag_group("Embeddings")
class EmbeddingOptions:
    embeddings: bool = flag("--embeddings --embedding", "Accepted, and always on.")
    reranking: bool = flag(
        "--reranking --rerank", "Accepted, and always on for models that are rerankers."
    )
    pooling: str | None = flag(
        "--pooling none|mean|cls|last|rank",
        "Rows that make a vector: all, their mean, the first, the last; as the file says, or the "
        "mean. rank: no vectors, scores of documents at /rerank.",
    )
    embd_normalize: int = flag(
        "--embd-normalize N", "Length of vectors: -1: as they are, 0: for 16 bits, 2: 1.", 2, min=-1
    )

    def __post_init__(self) -> None:
        if self.pooling not in (None, "none", "mean", "cls", "last", "rank"):
            raise typer.BadParameter(
                f"--pooling must be none, mean, cls, last or rank, got {self.pooling!r}"
            )


@flag_group("Chat")
class TemplateOptions:
    chat_template: str | None = flag(
        "--chat-template NAME",
        "Chat template: chatml, gemma, deepseek3, ..., the name of another one in the model's "
        "file, or a Jinja template itself.",
    )
    chat_template_file: Path | None = flag("--chat-template-file FILE", "File of a Jinja template.")
    chat_template_kwargs: str | None = flag(
        "--chat-template-kwargs JSON",
        """Switches of the template, such as '{"enable_thinking": false}'.""",
    )
    reasoning: str | None = REASONING
    reasoning_effort: str | None = REASONING_EFFORT
    reasoning_budget: int | None = REASONING_BUDGET
    reasoning_budget_message: str | None = REASONING_MESSAGE
    prefill_assistant: bool = flag(
        "--prefill-assistant/--no-prefill-assistant",
        "A chat that ends with a message of the assistant is continued there.",
        True,
    )
    jinja: bool = flag("--jinja", "Accepted, and always on.")
    reasoning_format: str = flag(
        "--reasoning-format FORMAT",
        "Place of thoughts: none (in the text), deepseek (in reasoning_content; also auto), "
        "deepseek-legacy (both).",
        "auto",
    )


def build_settings(  # noqa: PLR0913 - groups of flags
    listen: ListenOptions,
    limits: LimitOptions,
    cache: CacheOptions,
    context: ContextOptions,
    templates: TemplateOptions,
    vectors: EmbeddingOptions,
    sampling: SamplingOptions,
    rules: RuleOptions,
    log: LogOptions,
    switches: dict[str, Any],
    *,
    verbose: bool = False,
) -> ServerSettings:
    """The settings that the flags make; a wrong flag is a usage error."""
    from ..core.server.settings import ServerSettings

    with flag_errors():
        _check_folders(limits, cache)
        return ServerSettings(
            **_listening(listen),
            verbose=verbose,
            logs_texts=log.log_texts,
            with_metrics=limits.metrics,
            with_slots=limits.slots,
            with_props=limits.props,
            with_page=limits.ui,
            sampling=sampling.params(),
            seed=None if sampling.seed == RANDOM_SEED else sampling.seed,
            ignore_eos=rules.ignore_eos,
            grammar=read_grammar(rules),
            json_schema=read_schema(rules),
            max_tokens=None if limits.predict < 0 else limits.predict,
            shifts_context=context.context_shift,
            n_keep=context.keep,
            max_queue=limits.max_queue,
            max_body=limits.max_body * _MIB,
            io_s=limits.timeout,
            drain_s=limits.drain_seconds,
            media_folder=limits.media_path,
            slot_folder=cache.slot_save_path,
            record_folder=limits.record,
            stores_responses=limits.store_responses,
            record_bytes=limits.record_budget * _MIB,
            records_all=limits.record_all,
            caches_prompts=cache.cache_prompt,
            sleep_s=max(cache.sleep_idle_seconds, 0),
            prefills=templates.prefill_assistant,
            template_kwargs=tuple(switches.items()),
            reasoning_format=templates.reasoning_format,
            reasoning_budget=templates.reasoning_budget,
            reasoning_message=unescaped(templates.reasoning_budget_message or ""),
            pooling=vectors.pooling,
            embd_normalize=vectors.embd_normalize,
        )


def _listening(listen: ListenOptions) -> dict[str, Any]:
    """Who may ask, and where."""
    _check_listening(listen)
    return {
        "hosts": _parts(listen.host),
        "api_keys": read_keys(listen),
        "is_open": listen.insecure,
        "allowed_hosts": tuple(name.lower() for name in _parts(listen.allowed_hosts)),
        "cors_origins": _parts(listen.cors_origins),
        "alias": tuple(sorted(set(_parts(listen.alias)))),  # as llama-server has them
        "tags": _parts(listen.tags),
        "api_prefix": listen.api_prefix.rstrip("/"),
        "ssl_key": _path(listen.ssl_key_file),
        "ssl_cert": _path(listen.ssl_cert_file),
    }


def _check_listening(listen: ListenOptions) -> None:
    if not _parts(listen.host):
        raise typer.BadParameter("--host must name an address")
    if listen.parallel == 0:
        raise typer.BadParameter("--parallel must be at least 1, or -1, got 0")
    for path in (listen.ssl_key_file, listen.ssl_cert_file):
        if path is not None and not path.is_file():
            raise FileNotFoundError(2, "no such file", str(path))


def _check_folders(limits: LimitOptions, cache: CacheOptions) -> None:
    from ..core.server.request_recorder import check_record_folder
    from ..core.server.slot_folder import check_folder

    if cache.slot_save_path is not None:
        check_folder(cache.slot_save_path)
    if limits.media_path is not None and not limits.media_path.is_dir():
        raise typer.BadParameter(f"--media-path {limits.media_path}: there is no such folder")
    if limits.record is not None and not limits.store_responses:
        raise typer.BadParameter("--record stores what --no-store-responses forbids")
    if limits.record is not None:
        check_record_folder(limits.record)
    elif limits.record_all:
        raise typer.BadParameter("--record-all needs --record DIR")


def settings_remarks(settings: ServerSettings) -> list[str]:
    """What is recorded, and what lets more clients in than an operator may think."""
    from ..core.server.settings import ANY_ORIGIN

    found: list[str] = []
    if settings.record_folder is not None:
        whose = "all requests but those with" if settings.records_all else "requests with"
        value = "false" if settings.records_all else "true"
        found.append(f"recording  tokens of {whose} store: {value}, in {settings.record_folder}")
    if settings.api_keys:
        return found
    if (host := settings.public_host) is not None:
        found.append(f"--insecure: every machine that reaches {host} may use this server")
    if ANY_ORIGIN in settings.cors_origins:
        found.append(
            "--cors-origins *: every web page in a browser of this machine may use this server"
        )
    return found


def share_context(place: PlaceOptions, listen: ListenOptions) -> PlaceOptions:
    """With the context of one sequence, which --parallel sequences have --ctx-size for."""
    if listen.parallel < 2 or listen.kv_unified or not place.ctx_size:
        return place
    share = place.ctx_size // listen.parallel
    if not share:
        raise typer.BadParameter(
            f"--ctx-size {place.ctx_size} is shared by --parallel {listen.parallel} sequences: "
            "that is less than a token for each"
        )
    return replace(place, ctx_size=share)


def open_listeners(listen: ListenOptions, settings: ServerSettings) -> tuple[list[socket], str]:
    """The sockets that the server listens on, all on one port, and the URL of the first."""
    from ..core.server.sockets import check_certificate, open_socket, url_of
    from ..core.server.unix_sockets import unix_path

    if settings.ssl_cert is not None and settings.ssl_key is not None:
        check_certificate(settings.ssl_cert, settings.ssl_key)
    sockets, port = [], listen.port
    for host in settings.hosts:
        sockets.append(open_socket(host, port, is_shared=listen.reuse_port))
        if unix_path(host) is None:
            port = sockets[-1].getsockname()[1]
    url = url_of(settings.hosts[0], port, is_secure=settings.ssl_cert is not None)
    joint = ":" * bool(settings.api_prefix and unix_path(settings.hosts[0]))  # as nginx writes it
    return sockets, url + joint + settings.api_prefix


def read_keys(listen: ListenOptions) -> tuple[str, ...]:
    given = [*(listen.api_key or ()), os.environ.get("SPEC_API_KEY", "")]
    keys = [key for text in given for key in _parts(text)]
    if listen.api_key_file is not None:
        lines = listen.api_key_file.read_text(encoding="utf-8").splitlines()
        found = [key for line in lines if (key := line.strip()) and not key.startswith("#")]
        if not found:
            raise typer.BadParameter(f"--api-key-file: {listen.api_key_file} holds no key")
        keys += found
    return tuple(keys)


def _parts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)
