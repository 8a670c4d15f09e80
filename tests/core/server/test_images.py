"""Images in requests of all APIs: one text for one picture, and what cannot be an image."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from support.serving import Server, running
from support.towers import TinyVisionModel, build_vision_model, picture

from nextn.core.load_runtime import load_runtime
from nextn.core.server.loading import prepare
from nextn.core.server.request_images import MAX_IMAGES, decoded
from nextn.core.tokenizer import load_chat_template
from nextn.core.worker.worker import Loaded

GREEDY = {"temperature": 0.0, "seed": 1}
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


def base64_of(width: int, height: int, seed: int = 0, kind: str = "PNG") -> str:
    out = BytesIO()
    picture(width, height, seed).save(out, kind)
    return base64.b64encode(out.getvalue()).decode()


RED, BLUE = base64_of(90, 60), base64_of(90, 60, seed=5)
URI = f"data:image/png;base64,{RED}"


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> TinyVisionModel:
    return build_vision_model("qwen3vl", tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def seeing(vision: TinyVisionModel) -> Iterator[Server]:
    def load() -> Loaded:
        runtime = load_runtime(vision.text, "cpu", n_ctx=512, mmproj=vision.mmproj)
        return prepare(runtime, 2, load_chat_template(runtime.file.metadata))

    with running(Server(load, writes_text=False)) as server:
        yield server


def user(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def url_part(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


ASK = {"type": "text", "text": "what is it"}


def chat_text(server: Server, *parts: Any, **more: Any) -> str:
    answer = server.post(CHAT, messages=user(*parts), max_tokens=8, **GREEDY, **more)
    return str(answer["choices"][0]["message"]["content"])


def test_all_ways_to_show_an_image(seeing: Server) -> None:
    want = chat_text(seeing, url_part({"url": URI}), ASK)
    wrapped = "\n".join(RED[i : i + 76] for i in range(0, len(RED), 76))
    for part in (
        url_part({"url": URI, "detail": "low"}),
        url_part(URI),
        url_part(RED),
        url_part(f"data:text/plain;charset=x;base64,{wrapped}"),
        {"type": "input_image", "image_url": URI},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": RED}},
    ):
        assert chat_text(seeing, part, ASK) == want
    source = {"type": "base64", "media_type": "image/png", "data": RED}
    answer = seeing.post(
        MESSAGES, messages=user({"type": "image", "source": source}, ASK), max_tokens=8, **GREEDY
    )
    assert answer["content"][0]["text"] == want
    asked = user({"type": "input_image", "image_url": URI}, {"type": "input_text", **ASK_TEXT})
    answer = seeing.post(RESPONSES, input=asked, max_output_tokens=8, **GREEDY)
    assert answer["output"][-1]["content"][0]["text"] == want
    options = {"temperature": 0.0, "seed": 1, "num_predict": 8}
    message = {"role": "user", "content": ASK["text"], "images": [RED]}
    answer = seeing.post("/api/chat", messages=[message], options=options, stream=False)
    assert answer["message"]["content"] == want
    answer = seeing.post(
        "/api/generate", prompt=ASK["text"], images=[RED], options=options, stream=False
    )
    assert answer["response"] == want
    texts = [
        event["choices"][0]["delta"].get("content") or ""
        for event in seeing.events(CHAT, messages=user(url_part(URI), ASK), max_tokens=8, **GREEDY)
        if event != "[DONE]" and event["choices"]
    ]
    assert "".join(texts) == want


ASK_TEXT = {"text": ASK["text"]}


def test_prompts_with_images(seeing: Server) -> None:
    prompt = {"prompt_string": "the <__media__> of <image>", "multimodal_data": [RED]}
    answer = seeing.post("/completion", prompt=prompt, n_predict=8, **GREEDY)
    assert answer["prompt"] == "the <|vision_start|><__media__><|vision_end|> of <image>"
    same = seeing.post("/v1/completions", prompt=[prompt], max_tokens=8, **GREEDY)
    assert same["choices"][0]["text"] == answer["content"]
    two = dict(prompt, prompt_string="the of", multimodal_data=[RED, BLUE])
    answer = seeing.post("/completion", prompt=two, n_predict=8, **GREEDY)
    assert answer["prompt"].count("<__media__>") == 2
    options = {"temperature": 0.0, "seed": 1, "num_predict": 4}
    answer = seeing.post(
        "/api/generate", prompt="the", images=[RED], raw=True, options=options, stream=False
    )
    assert answer["eval_count"]


def test_timings_of_images(seeing: Server) -> None:
    data = base64_of(130, 70, seed=77)
    prompt = {"prompt_string": "the <__media__>", "multimodal_data": [data]}
    found = []
    for _ in range(2):
        answer = seeing.post("/completion", prompt=prompt, n_predict=2, **GREEDY)
        found.append(answer["timings"])
    assert found[0]["image_n"] == found[1]["image_n"] >= 8
    assert found[0]["image_ms"] > 0
    answer = seeing.post("/completion", prompt="the", n_predict=2, **GREEDY)
    assert "image_ms" not in answer["timings"]


def test_embeddings_of_images(seeing: Server) -> None:
    def vectors(*given: Any) -> list[list[float]]:
        answer = seeing.post("/v1/embeddings", input=list(given))
        assert answer["usage"]["prompt_tokens"] > 8
        return [each["embedding"] for each in answer["data"]]

    red, blue = (
        {"prompt_string": "the <__media__>", "multimodal_data": [data]} for data in (RED, BLUE)
    )
    first, second, text, again = vectors(red, blue, "the", red)
    assert first == again
    assert first != second
    assert first != text
    (own,) = seeing.post("/embeddings", content=[blue])
    assert own["embedding"] == [second]
    bad = {"prompt_string": "x", "multimodal_data": ["no!"]}
    status, error = seeing.refused("/v1/embeddings", {"input": [bad]})
    assert (status, error["param"]) == (400, "input.multimodal_data[0]")
    assert error["message"].startswith("input.multimodal_data[0] is not base64")


def test_the_cache_knows_images(seeing: Server) -> None:
    def cached(data: str) -> int:
        prompt = {"prompt_string": "one two three <__media__>", "multimodal_data": [data]}
        answer = seeing.post("/completion", prompt=prompt, n_predict=4, **GREEDY)
        return int(answer["timings"]["cache_n"])

    first = base64_of(200, 200, seed=7)
    assert cached(first) < 16
    again = cached(first)
    assert again > 36  # of 49 rows
    assert cached(base64_of(200, 200, seed=8)) < 16


def test_rows_are_counted(seeing: Server) -> None:
    parts = url_part(URI), ASK
    n_text = seeing.post(f"{CHAT}/input_tokens", messages=user(ASK))["input_tokens"]
    n = seeing.post(f"{CHAT}/input_tokens", messages=user(*parts))["input_tokens"]
    assert n == n_text + 3 * 4 + 2
    answer = seeing.post(CHAT, messages=user(*parts), max_tokens=2, **GREEDY)
    assert answer["usage"]["prompt_tokens"] == n
    source = {"type": "base64", "media_type": "image/png", "data": RED}
    counted = seeing.post(
        f"{MESSAGES}/count_tokens", messages=user({"type": "image", "source": source}, ASK)
    )
    assert counted["input_tokens"] == n


def test_templates_show_marks_and_no_data(seeing: Server) -> None:
    shown = seeing.post("/apply-template", messages=user(url_part(URI), ASK))["prompt"]
    assert RED[:40] not in shown
    assert shown.count("<__media__>") == 1


def test_what_the_server_says_of_itself(seeing: Server, server: Server) -> None:
    for each, sees in ((seeing, True), (server, False)):
        props = each.get("/props")
        assert props["modalities"]["vision"] is sees
        assert props["media_marker"] == "<__media__>"
        models = each.get("/v1/models")
        assert ("multimodal" in models["models"][0]["capabilities"]) is sees
        assert ("image" in models["data"][0]["architecture"]["input_modalities"]) is sees
        shown = each.post("/api/show", model=models["data"][0]["id"])
        assert ("vision" in shown["capabilities"]) is sees


def test_images_beside_each_other_and_beside_texts(seeing: Server) -> None:
    """Encoding goes step by step: a text that is being written is the same, and so are these."""
    bodies: list[Any] = [
        {"messages": user(url_part(base64_of(300, 200 + 8 * i, seed=i)), ASK)} for i in range(3)
    ] + [{"messages": user(ASK)}] * 2
    alone = [seeing.post(CHAT, **body, max_tokens=12, **GREEDY) for body in bodies]
    found: list[Any] = [None] * len(bodies)

    def ask(i: int) -> None:
        found[i] = seeing.post(CHAT, **bodies[i], max_tokens=12, **GREEDY)

    seeing.runtime.images._rows.clear()
    seeing.runtime.images._n_bytes = 0
    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one, other in zip(found, alone, strict=True):
        assert one["choices"][0]["message"] == other["choices"][0]["message"]


def test_a_message_of_the_system_and_of_a_tool(seeing: Server) -> None:
    messages = [
        {"role": "system", "content": [url_part(URI), {"type": "text", "text": "be kind"}]},
        *user(ASK),
        {"role": "assistant", "content": "it is"},
        {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "a"},
                                                           url_part(URI)]},
    ]  # fmt: skip
    answer = seeing.post(CHAT, messages=messages, max_tokens=2, **GREEDY)
    assert answer["usage"]["prompt_tokens"] > 2 * 12
    block = {"type": "image", "source": {"type": "base64", "media_type": "x", "data": RED}}
    result = {"type": "tool_result", "tool_use_id": "x", "content": [block]}
    assert seeing.post(MESSAGES, messages=user(result), max_tokens=2, **GREEDY)["content"]


LARGE = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(33 << 20)).decode()
TRUNCATED = base64.b64encode(base64.b64decode(base64_of(200, 200))[:3000]).decode()
HOSTILE: list[tuple[str, Any, str, str]] = [
    (CHAT, url_part("http://127.0.0.1:9/x.png"), "not fetched", "image_url"),
    (CHAT, url_part({"url": "HTTPS://example.com/x.png"}), "not fetched", "image_url"),
    (CHAT, url_part("file:///etc/passwd"), "--media-path", "image_url"),
    (CHAT, url_part("/etc/passwd"), "is not base64", "image_url"),
    (CHAT, url_part("picture.png"), "is not base64", "image_url"),
    (CHAT, url_part({"url": 5}), "must be a data URI", "image_url"),
    (CHAT, url_part({}), "must be a data URI", "image_url"),
    (CHAT, url_part(""), "must be a data URI", "image_url"),
    (CHAT, url_part("data:image/png,abcd"), "must be a data URI with base64", "image_url"),
    (CHAT, url_part("data:image/png;base64,"), "is not base64", "image_url"),
    (CHAT, url_part("data:image/png;base64,ab!d"), "is not base64", "image_url"),
    (CHAT, url_part(f"data:image/png;base64,{RED[:-1]}"), "is not base64", "image_url"),
    (CHAT, url_part(f"data:image/png;base64,{RED}\u00e9"), "is not base64", "image_url"),
    (CHAT, url_part("data:text/html;base64,PGh0bWw+"), "not a PNG, JPEG", "content[0]"),
    (CHAT, url_part(f"data:image/png;base64,{TRUNCATED}"), "is damaged", "content[0]"),
    (CHAT, url_part(base64_of(2010, 10)), "at most 200 times", "content[0]"),
    (CHAT, {"type": "input_image", "file_id": "x"}, "nothing is stored", "file_id"),
    (CHAT, {"type": "input_image"}, "must be a data URI", "image_url"),
    (CHAT, {"type": "image"}, "is missing", "source"),
    (MESSAGES, {"type": "image", "source": {"type": "url", "url": "http://x/"}}, "not fetched", ""),
    (MESSAGES, {"type": "image", "source": {"type": "file", "file_id": "x"}}, "be base64", "type"),
    (RESPONSES, {"type": "input_image", "image_url": "http://x/"}, "not fetched", "image_url"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "part", "said", "where"), HOSTILE, ids=lambda v: str(v)[:30])
def test_what_cannot_be_an_image(
    path: str, part: Any, said: str, where: str, seeing: Server
) -> None:
    body = {"input": user(part)} if path == RESPONSES else {"messages": user(part)}
    status, error = seeing.refused(path, body | {"max_tokens": 1})
    assert status == 400, error
    assert said in error["message"]
    assert where in error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) < 300


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (CHAT, {"messages": user(*[url_part(RED)] * (MAX_IMAGES + 1))}, "at most 16 images"),
        (CHAT, {"messages": user(url_part(base64_of(900, 900)))}, "exceeds the available context"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": [5]}]}, "images"),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": "x"}]}, "images"),
        ("/api/generate", {"prompt": "x", "images": ["no!"]}, "is not base64"),
        (
            "/completion",
            {"prompt": {"prompt_string": "<__media__> <__media__>", "multimodal_data": [RED]}},
            "2 marks of images",
        ),
        ("/completion", {"prompt": {"prompt_string": 5, "multimodal_data": [RED]}}, "a string"),
        ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": RED}}, "a list"),
        ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": [5]}}, "a data URI"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_requests_that_cannot_be(path: str, body: Any, said: str, seeing: Server) -> None:
    status, error = seeing.refused(path, body)
    assert status == 400, error
    message = error if isinstance(error, str) else error["message"]
    assert said in message
    assert "\n" not in message


def test_a_large_image_is_refused_unread() -> None:
    from nextn.core.errors import InputError
    from nextn.core.server.api_errors import ApiError
    from nextn.core.vision.image_file import size_of

    with pytest.raises(ApiError, match="more than 32 MiB"):
        decoded("A" * (65 << 20), "here")
    with pytest.raises(InputError, match="more than 32 MiB"):
        size_of(decoded(LARGE, "here"), "here")


def test_files_of_a_folder(vision: TinyVisionModel, tmp_path: Path, seeing: Server) -> None:
    folder = tmp_path / "media"
    (folder / "photos").mkdir(parents=True)
    (folder / "photos/a cat.png").write_bytes(base64.b64decode(RED))
    (folder / "notes.png").write_text("no image")
    (tmp_path / "secret.png").write_bytes(base64.b64decode(RED))
    (folder / "link.png").symlink_to(tmp_path / "secret.png")

    def load() -> Loaded:
        runtime = load_runtime(vision.text, "cpu", n_ctx=512, mmproj=vision.mmproj)
        return prepare(runtime, 2, load_chat_template(runtime.file.metadata))

    def body(url: str) -> dict[str, Any]:
        return {"messages": user(ASK, url_part({"url": url})), "max_tokens": 8, **GREEDY}

    wanted = seeing.post(CHAT, **body(URI))["choices"][0]["message"]["content"]
    with running(Server(load, writes_text=False, media_folder=folder)) as own:
        for name in ("photos/a cat.png", "//photos//a%20cat.png", "photos/../photos/a cat.png"):
            url = f"file://{name}"
            assert own.post(CHAT, **body(url))["choices"][0]["message"]["content"] == wanted
        for name in ("missing.png", "../secret.png", "link.png", "photos", "", "%00", "a" * 5000):
            status, error = own.refused(CHAT, body(f"file://{name}"))
            assert status == 400
            assert "names no file below" in error["message"]
            assert str(tmp_path) not in error["message"]
        assert own.refused(CHAT, body("file://notes.png"))[0] == 400
    status, error = seeing.refused(CHAT, body("file://photos/a cat.png"))
    assert status == 400
    assert "--media-path" in error["message"]


def test_without_an_mmproj_file(server: Server) -> None:
    for path, body in (
        (CHAT, {"messages": user(url_part(URI))}),
        (MESSAGES, {"messages": user({"type": "image", "source": {}}), "max_tokens": 1}),
        (RESPONSES, {"input": user({"type": "input_image", "image_url": URI})}),
        ("/completion", {"prompt": {"prompt_string": "a", "multimodal_data": [RED]}}),
        ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": [RED]}]}),
        ("/api/generate", {"prompt": "x", "images": [RED]}),
    ):
        status, error = server.refused(path, body)
        assert status == 400, error
        assert "start the server with --mmproj FILE" in str(error)
