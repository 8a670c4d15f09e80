"""Responses that are kept for a while: to go on from, to be read again and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.replicated import replicated
from support.serving import Server, nano_server, running, templated_server

from nextn.core.server.api_errors import ApiError
from nextn.core.server.response_store import KEPT, KEPT_BYTES, KEPT_S, ResponseStore, replica_of

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}[{{ c.function.arguments.city }}]"
    "{% endfor %}\n{% endfor %}assistant:"
)
ASK: dict[str, Any] = {"input": "Hi", "max_output_tokens": 6, "temperature": 0}
SAYING_YES = {"grammar": 'root ::= "Yes"'}


@pytest.fixture(scope="module")
def chatty() -> Iterator[Server]:
    with running(templated_server(TEMPLATE)) as server:
        yield server


def test_a_response_goes_on_from_another(chatty: Server) -> None:
    first = chatty.post("/v1/responses", **ASK, **SAYING_YES, instructions="Be brief.")
    assert first["store"] is True
    more = ASK | {"input": [{"role": "user", "content": "Why?"}]}
    second = chatty.post("/v1/responses", **more, previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    said = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "Why?"},
    ]  # instructions are those of one request
    whole = chatty.post("/v1/responses", **ASK | {"input": said})
    assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert second["output"][0]["content"] == whole["output"][0]["content"]
    third = chatty.post("/v1/responses", **ASK, previous_response_id=second["id"])
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]
    counted = chatty.post("/v1/responses/input_tokens", **ASK, previous_response_id=second["id"])
    assert counted["input_tokens"] == third["usage"]["input_tokens"]


def test_calls_and_their_results(chatty: Server) -> None:
    client = openai.OpenAI(base_url=f"{chatty.url}/v1", api_key="none", max_retries=0)
    tools: Any = [{"type": "function", "name": "now", "parameters": {"type": "object"}}]
    call = '<tool_call>\n{"name": "now", "arguments": {"city": "Ulm"}}\n</tool_call>'
    rule = {"guided_choice": [call]}
    first = client.responses.create(model="x", input="Hi", tools=tools, extra_body=rule)
    (item,) = first.output
    assert item.type == "function_call"
    output: Any = [{"type": "function_call_output", "call_id": item.call_id, "output": "noon"}]
    second = client.responses.create(
        model="x", input=output, tools=tools, previous_response_id=first.id, max_output_tokens=4
    )
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    cut = client.responses.create(
        model="x", input="Hi", tools=tools, extra_body=rule, max_output_tokens=12
    )
    assert cut.status == "incomplete"
    client.responses.create(  # a call without an end is no part of the history
        model="x", input="And?", tools=tools, previous_response_id=cut.id, max_output_tokens=4
    )


def test_an_empty_text_is_a_message(chatty: Server) -> None:
    assert chatty.post("/v1/responses", **ASK | {"input": ""})["usage"]["input_tokens"] > 0


def test_get_and_delete(chatty: Server) -> None:
    client = openai.OpenAI(base_url=f"{chatty.url}/v1", api_key="none", max_retries=0)
    streamed = list(
        client.responses.create(
            model="x", input="Hi", max_output_tokens=6, temperature=0, stream=True
        )
    )
    last = streamed[-1]
    assert last.type == "response.incomplete"
    assert client.responses.retrieve(last.response.id) == last.response
    status, error, _ = chatty.request("GET", f"/v1/responses/{last.response.id}?stream=true")
    assert status == 400, error
    client.responses.delete(last.response.id)
    with pytest.raises(openai.NotFoundError, match="there is no response 'resp_0_"):
        client.responses.retrieve(last.response.id)
    status, error, _ = chatty.request("DELETE", f"/v1/responses/{last.response.id}")
    assert (status, error["error"]["type"]) == (404, "not_found_error")
    status, error = chatty.refused("/v1/responses", ASK | {"previous_response_id": "resp_0_x"})
    assert (status, error["param"]) == (404, "previous_response_id")


def test_what_says_so_is_not_kept(chatty: Server) -> None:
    done = chatty.post("/v1/responses", **ASK, store=False)
    assert done["store"] is False
    assert chatty.request("GET", f"/v1/responses/{done['id']}")[0] == 404


def test_a_server_that_stores_none() -> None:
    with running(nano_server(stores_responses=False)) as server:
        done = server.post("/v1/responses", **ASK, store=True)
        assert done["store"] is False
        for method in ("GET", "DELETE"):
            status, value, _ = server.request(method, f"/v1/responses/{done['id']}")
            said = "this server stores no responses (--no-store-responses)"
            assert (status, value["error"]["message"]) == (404, said)
        status, error = server.refused("/v1/responses", ASK | {"previous_response_id": done["id"]})
        assert (status, error["param"]) == (400, "previous_response_id")
        assert error["message"].endswith("give the earlier items as input")


def test_of_the_same_key_only() -> None:
    with running(nano_server(api_keys=("one", "two"))) as server:
        mine, other = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
        done = server.request("POST", "/v1/responses", ASK, **mine)[1]
        path, on = f"/v1/responses/{done['id']}", ASK | {"previous_response_id": done["id"]}
        assert server.request("GET", path, **other)[0] == 404
        assert server.request("DELETE", path, **other)[0] == 404
        assert server.request("POST", "/v1/responses", on, **other)[0] == 404
        assert server.request("GET", path)[0] == 401
        assert server.request("GET", path, **mine)[1] == done
        assert server.request("POST", "/v1/responses", on, **mine)[0] == 200


def test_the_replica_that_wrote_it_is_asked() -> None:
    with replicated() as server:
        for n in range(6):
            done = server.post("/v1/responses", **ASK | {"input": f"{n} times"})
            keeper = server.replicas.routed[-1]
            assert replica_of(done["id"]) == keeper
            server.post("/v1/responses", **ASK, previous_response_id=done["id"])
            assert server.get(f"/v1/responses/{done['id']}") == done
            assert server.replicas.routed[-2:] == [keeper, keeper]
        assert server.request("GET", "/v1/responses/resp_9999_x")[0] == 404


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def is_kept(store: ResponseStore, key: str) -> bool:
    try:
        return store.find(key, "").owner == ""
    except ApiError:
        return False


def test_the_number_is_bounded() -> None:
    store = ResponseStore(Clock())
    for n in range(KEPT + 3):
        store.add({"id": f"resp_{n}"}, [], "")
    assert [is_kept(store, f"resp_{n}") for n in (2, 3, KEPT + 2)] == [False, True, True]


def test_bytes_are_bounded() -> None:
    store = ResponseStore(Clock())
    big = [{"content": "x" * (KEPT_BYTES // 3)}]
    for n in range(4):
        store.add({"id": f"resp_{n}"}, big, "")
    assert [is_kept(store, f"resp_{n}") for n in range(4)] == [False, False, True, True]
    store.remove("resp_2", "")
    store.add({"id": "resp_4"}, big, "")
    assert [is_kept(store, f"resp_{n}") for n in (3, 4)] == [True, True]
    store.add({"id": "resp_5"}, 4 * big, "")
    assert not any(is_kept(store, f"resp_{n}") for n in range(6))


def test_time_is_bounded() -> None:
    clock = Clock()
    store = ResponseStore(clock)
    store.add({"id": "resp_0"}, [{"role": "user"}], "")
    clock.now = KEPT_S - 1
    store.add({"id": "resp_1"}, [], "")
    assert store.find("resp_0", "").history() == [{"role": "user"}]
    clock.now = KEPT_S
    assert [is_kept(store, f"resp_{n}") for n in (0, 1)] == [False, True]
