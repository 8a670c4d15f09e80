"""`ServerSettings`: how a server is set up, whatever model it serves."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ..errors import ConfigError
from ..sampling.params import SamplingParams

LOCALHOST: Final = "127.0.0.1"
ANY_ORIGIN: Final = "*"
# As the model wrote them; apart, as `reasoning_content` (auto does this too); both.
REASONING_FORMATS: Final = ("none", "auto", "deepseek", "deepseek-legacy")
_LOCAL_NAMES: Final = ("localhost", "localhost.localdomain")


@dataclass(frozen=True, slots=True)
class ServerSettings:
    host: str = LOCALHOST
    api_keys: tuple[str, ...] = ()
    is_open: bool = False  # may be reached from elsewhere without a key
    allowed_hosts: tuple[str, ...] = ()  # names in Host headers, besides those of this machine
    cors_origins: tuple[str, ...] = ()  # besides pages of this machine; `*` is everybody
    alias: tuple[str, ...] = ()  # names of the model; the first one is shown
    with_metrics: bool = True
    with_slots: bool = True
    with_page: bool = True
    writes_text: bool = False  # the model goes on with texts rather than chats: the page says so
    slot_folder: Path | None = None  # where slots are saved; None: they are not
    caches_prompts: bool = True  # where requests say nothing: begin with what others left
    sleep_s: float = 0.0  # without a request, and the model's memory is given back; 0: never
    sampling: SamplingParams = field(default_factory=SamplingParams)  # where requests say nothing
    seed: int | None = None  # the same; None: drawn for each request
    max_tokens: int | None = None  # of a text, where a request says nothing or more
    max_queue: int = 512  # requests that may wait
    max_body: int = 16 << 20  # bytes
    max_header: int = 32 << 10  # bytes of all headers together
    queue_s: float = 600.0  # a request waits no longer for its turn
    io_s: float = 60.0  # a client that sends or reads nothing for so long is given up
    drain_s: float = 2.5  # what is under way at the end may take so long
    ping_s: float = 30.0  # a stream that is silent for so long says that it is alive
    template_kwargs: tuple[tuple[str, object], ...] = ()  # switches of the chat template
    reasoning_format: str = "auto"  # how thoughts are told: see `REASONING_FORMATS`
    ssl_key: str | None = None
    ssl_cert: str | None = None
    replica: int = 0  # the number of this one of several
    replicas: int = 1

    def __post_init__(self) -> None:
        if not (is_loopback(self.host) or self.api_keys or self.is_open):
            raise ConfigError(
                f"--host {self.host} can be reached by other machines: give an --api-key, or "
                "--insecure if everybody who can reach it may use it"
            )
        if self.reasoning_format not in REASONING_FORMATS:
            raise ConfigError(
                f"--reasoning-format {self.reasoning_format!r:.60} is none of "
                + ", ".join(REASONING_FORMATS)
            )
        if (self.ssl_key is None) != (self.ssl_cert is None):
            raise ConfigError("--ssl-key-file and --ssl-cert-file need each other")

    def knows_host(self, host: str) -> bool:
        """Whether a Host header may be the one of an honest client. A page elsewhere that gives
        its own name our address (DNS rebinding) sends its own name."""
        if self.api_keys or not is_loopback(self.host):
            return True
        name = _name_of(host)
        return is_local(name) or name in (self.host, *self.allowed_hosts)

    def knows_origin(self, origin: str) -> bool:
        if ANY_ORIGIN in self.cors_origins or origin in self.cors_origins:
            return True
        scheme, _, host = origin.partition("://")
        return scheme in ("http", "https") and is_local(_name_of(host), addresses=False)


def is_loopback(host: str) -> bool:
    if host in _LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_local(name: str, *, addresses: bool = True) -> bool:
    """A name of this machine; `addresses`: or any address, which nobody can rebind."""
    if name in _LOCAL_NAMES or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return addresses or address.is_loopback


def _name_of(host: str) -> str:
    """Without the port."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
