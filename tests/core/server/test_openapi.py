"""`/openapi.json`: it describes what there is, and what it describes holds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.serving import SETTINGS, Server, nano_server, running

from nextn.core.server.openapi import document
from nextn.core.server.response_bodies import AnthropicError, ErrorResult, OllamaError
from nextn.core.server.routes import ROUTES


def test_every_route_is_described(server: Server) -> None:
    told = server.get("/openapi.json")
    assert told == msgspec.json.decode(msgspec.json.encode(document()))
    described = {(path, method) for path, each in told["paths"].items() for method in each}
    there = {
        (path.replace(":path", ""), method.lower()) for path, methods, _ in ROUTES
        for method in methods
    }  # fmt: skip
    assert described == there


def test_a_request_with_all_fields(server: Server) -> None:
    """Every field that is described is known: a wrong type is a 400."""
    for path in ("/completion", "/v1/completions", "/v1/chat/completions", "/v1/messages"):
        operation = document()["paths"][path]["post"]
        schema = resolved(operation["requestBody"]["content"]["application/json"]["schema"])
        plain: dict[str, Any] = {"prompt": "a", "messages": [{"role": "user", "content": "x"}]}
        if path == "/v1/messages":
            plain["max_tokens"] = 1
        for name in schema["properties"]:
            wrong = plain | {name: wrong_value(schema["properties"][name])}
            status, told, _ = server.request("POST", path, wrong)
            assert status == 400, (path, name, told)


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def wrong_value(schema: dict[str, Any]) -> Any:
    """A value that no field takes: a number where it may be an object, and the other way."""
    may_be_object = any(word in str(schema) for word in ("object", "enum", "$ref"))
    return 1.5 if may_be_object else {"1": {"2": []}}


@pytest.mark.slow
def test_whatever_is_described_holds() -> None:
    """schemathesis: values at and beyond all limits, missing and wrong fields, other methods."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings

    checks = schemathesis.checks
    n_good = [0]

    def of_status(_ctx: Any, response: Any, _case: Any) -> None:
        assert response.status_code < 500 or response.status_code == 501, response.text
        if response.status_code >= 400 and response.request.method != "HEAD":
            if "/api/" in response.request.url:
                assert msgspec.json.decode(response.content, type=OllamaError).error
                return
            if "/v1/messages" in response.request.url:
                assert msgspec.json.decode(response.content, type=AnthropicError).error.message
                return
            told = msgspec.json.decode(response.content, type=ErrorResult)
            assert told.error.code == response.status_code
        n_good[0] += response.status_code == 200

    with running(nano_server(SETTINGS, n=2, max_tokens=4)) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        wanted = [
            of_status, checks.CHECKS.get_one("response_schema_conformance"),
            checks.CHECKS.get_one("content_type_conformance"),
        ]  # fmt: skip
        for found in schema.get_all_operations():
            operation: Any = found.ok()  # type: ignore[union-attr, unused-ignore]
            modes = [schemathesis.GenerationMode.POSITIVE]
            if operation.method == "post":  # nothing can be wrong with the others
                modes.append(schemathesis.GenerationMode.NEGATIVE)
            for mode in modes:

                @settings(
                    max_examples=15,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=operation.as_strategy(generation_mode=mode))
                def run(case: Any) -> None:
                    case.call_and_validate(checks=wanted, timeout=60)

                run()
        assert n_good[0] > 50  # some 100, by chance
        assert server.get("/health") == {"status": "ok"}
