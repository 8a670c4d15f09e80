"""`ServerSettings`: the settings of a server that do not depend on its model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, Literal, get_args

from msgspec import Struct, field

from ..errors import ConfigError
from ..sampling.params import SamplingParams
from .unix_sockets import unix_path
from .web_origins import WEB_SCHEMES, host_name, is_local, is_loopback, is_private, split_origin

LOCALHOST: Final = "127.0.0.1"
ANY_ORIGIN: Final = "*"
LOCAL_ORIGINS: Final = "localhost"  # llama-server's word for the pages of this machine
_PREFIX: Final = re.compile(r"(/[\w.~-]+)+", re.ASCII)
# Reasoning stays in the content; goes to `reasoning_content` (`auto` too); or is in both.
ReasoningFormat = Literal["none", "auto", "deepseek", "deepseek-legacy"]
REASONING_FORMATS: Final = get_args(ReasoningFormat)


class ServerSettings(Struct, frozen=True):
    hosts: tuple[str, ...] = (LOCALHOST,)
    api_keys: tuple[str, ...] = ()
    is_open: bool = False  # may be reached from elsewhere without a key
    allowed_hosts: tuple[str, ...] = ()  # names in Host headers, besides those of this machine
    cors_origins: tuple[str, ...] = ()  # besides pages of this machine; `*`: any origin
    alias: tuple[str, ...] = ()  # names of the model; the first one is its id
    tags: tuple[str, ...] = ()  # shown in the list of models
    verbose: bool = False  # default of the request field
    logs_texts: bool = False  # prompts and texts are in the log of requests
    prefills: bool = True  # a reply continues the assistant's message that a chat ends with
    with_metrics: bool = True
    with_slots: bool = True
    with_props: bool = False  # `POST /props` changes defaults of requests
    with_page: bool = True
    writes_text: bool = False  # the page offers to continue text instead of a chat
    media_folder: Path | None = None  # whose images requests may name; None: none
    slot_folder: Path | None = None  # where slots are saved; None: they are not
    record_folder: Path | None = None  # where tokens of requests are kept; None: they are not
    record_bytes: int = 0  # that these may take
    stores_responses: bool = True  # of `/v1/responses`, in memory
    records_all: bool = False  # those of requests that do not say `store`
    caches_prompts: bool = True  # default of `cache_prompt`: reuse the prefix cache
    sleep_s: float = 0.0  # the model is unloaded after so long without a request; 0: never
    sampling: SamplingParams = field(default_factory=SamplingParams)  # defaults of requests
    seed: int | None = None  # default of requests; None: drawn for each
    max_tokens: int | None = None  # of requests that set no limit
    shifts_context: bool = False  # a text goes on where its context is full
    n_keep: int = 0  # then, tokens of the beginning that stay, of requests that do not say
    ignore_eos: bool = False  # of requests that do not say, and follow no rule
    grammar: str | None = None  # of requests without a rule of their own; or `json_schema`
    json_schema: str | None = None
    max_queue: int = 512  # requests that may wait
    max_body: int = 16 << 20  # bytes
    max_header: int = 32 << 10  # bytes of all headers together
    queue_s: float = 600.0  # a request that waits longer for a slot is refused
    io_s: float = 60.0  # a client that sends or reads nothing for so long is disconnected
    drain_s: float = 2.5  # how long open requests may take at the end of the server
    ping_s: float = 30.0  # a stream without events for so long sends a comment
    template_kwargs: tuple[tuple[str, object], ...] = ()  # switches of the chat template
    reasoning_format: str = "auto"  # see `REASONING_FORMATS`
    reasoning_budget: int | None = None  # tokens of thoughts of chats that do not say
    reasoning_message: str = ""  # that ends thoughts which are too long
    pooling: str | None = None  # of embeddings; None: as the model's file says
    embd_normalize: int = 2
    api_prefix: str = ""  # in front of all paths
    ssl_key: str | None = None
    ssl_cert: str | None = None
    replica: int = 0  # the number of this one of several
    replicas: int = 1

    def __post_init__(self) -> None:
        if self.public_host is not None and not (self.api_keys or self.is_open):
            raise ConfigError(
                f"--host {self.public_host} can be reached by other machines: give an --api-key, "
                "or --insecure to let every machine that reaches it use it"
            )
        for origin in self.cors_origins:
            if origin not in (ANY_ORIGIN, LOCAL_ORIGINS) and not split_origin(origin)[0]:
                raise ConfigError(
                    f"--cors-origins {origin!r:.100} is no origin: give scheme://host[:port], "
                    "scheme://* for all of a scheme, or * for all pages"
                )
        if self.reasoning_format not in REASONING_FORMATS:
            raise ConfigError(
                f"--reasoning-format {self.reasoning_format!r:.60} is none of "
                + ", ".join(REASONING_FORMATS)
            )
        if sum((self.ignore_eos, self.grammar is not None, self.json_schema is not None)) > 1:
            raise ConfigError("--ignore-eos, --grammar and --json-schema exclude each other")
        if self.api_prefix and not _PREFIX.fullmatch(self.api_prefix):
            raise ConfigError(f"--api-prefix is like /llm, got {self.api_prefix!r:.60}")
        if (self.ssl_key is None) != (self.ssl_cert is None):
            raise ConfigError("--ssl-key-file and --ssl-cert-file need each other")

    @property
    def public_host(self) -> str | None:
        """The first address that other machines may reach."""
        addresses = (host for host in self.hosts if unix_path(host) is None)
        return next((host for host in addresses if not is_loopback(host)), None)

    def knows_host(self, host: str) -> bool:
        """Returns whether a Host header is allowed. A web page whose name resolves to our address
        (DNS rebinding) sends its own name."""
        if self.api_keys or self.public_host is not None:
            return True
        name = host_name(host)
        return is_local(name) or self._names(name)

    def knows_origin(self, origin: str) -> bool:
        """Returns whether web pages of this origin may read what the server says."""
        scheme, authority = split_origin(origin)
        if {ANY_ORIGIN, origin, f"{scheme}://*"} & set(self.cors_origins):
            return True
        return scheme in WEB_SCHEMES and is_local(host_name(authority), addresses=False)

    def is_own_page(self, origin: str, host: str) -> bool:
        """Returns whether an origin is the address that the request was sent to. Under a public
        name that would be so of DNS rebinding, too, where `knows_host` lets every name pass."""
        scheme, authority = split_origin(origin)
        name = host_name(host)
        is_same = scheme in WEB_SCHEMES and authority == host.lower()
        return is_same and (is_private(name) or self._names(name))

    def _names(self, name: str) -> bool:
        return bool(name) and name in (*self.hosts, *self.allowed_hosts)
