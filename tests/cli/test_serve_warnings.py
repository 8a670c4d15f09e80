"""What `spec serve` says of settings that let many clients in."""

from __future__ import annotations

import pytest

from nextn.cli.serve_options import settings_remarks
from nextn.core.server.settings import ServerSettings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (ServerSettings(), []),
        (ServerSettings(is_open=True), []),
        (ServerSettings(hosts=("127.0.0.1", "::"), is_open=True), ["--insecure"]),
        (ServerSettings(hosts=("0.0.0.0",), is_open=True), ["--insecure"]),
        (ServerSettings(hosts=("0.0.0.0",), api_keys=("k",), cors_origins=("*",)), []),
        (ServerSettings(cors_origins=("*",)), ["--cors-origins *"]),
    ],
)
def test_warnings(settings: ServerSettings, said: list[str]) -> None:
    assert [line.partition(":")[0] for line in settings_remarks(settings)] == said
