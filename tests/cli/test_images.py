"""`spec generate --image` and `spec serve --mmproj`: prompts with images, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.served import ask, served
from support.towers import TinyVisionModel, build_vision_model, picture

from nextn.cli.chat_loop import ChatLoop
from nextn.cli.console import Console
from nextn.cli.conversation import ChatSetup
from nextn.cli.printers import TextPrinter
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.state.embedded_rows import ModelPrompt
from nextn.core.vision.image_prompt import place_images, split_at_marks

Run = Callable[..., subprocess.CompletedProcess[str]]
TEMPLATE = "{% for m in messages %}[{{ m.role[0] }}|{{ m.content }}]{% endfor %}"
GREEDY = ("--temp", "0", "-n", "8", "-q")


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> TinyVisionModel:
    return build_vision_model("qwen3vl", tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    for i, size in enumerate([(90, 60), (64, 120)]):
        picture(*size, seed=i).save(folder / f"{i}.png")
    return sorted(folder.iterdir())


def flags_of(vision: TinyVisionModel) -> tuple[str, ...]:
    return ("generate", "-m", str(vision.text), "-mm", str(vision.mmproj), "-c", "512", *GREEDY)


def expected(vision: TinyVisionModel, text: str, images: list[Path]) -> str:
    with load_runtime(vision.text, "cpu", n_ctx=512, mmproj=vision.mmproj) as runtime:
        read = [runtime.images.read(path.read_bytes()) for path in images]
        pieces = split_at_marks(text, len(images))
        prompt = place_images(pieces, read, runtime.images.projector, runtime.tokenizer)
        params = GenerateParams(SamplingParams(temperature=0.0), max_tokens=8)
        events = runtime.generate(runtime.encode_images(prompt), params)
        return "".join(event.text for event in events)


def test_a_text_behind_images(
    real_spec_here: Run, vision: TinyVisionModel, shown: list[Path]
) -> None:
    texts = set()
    for text, images in (
        ("the <image> and <image> of", shown),
        ("the <image> and <image> of", shown[::-1]),
        ("the <image> of", shown[:1]),
        ("the of", shown),
    ):
        more = [word for path in images for word in ("--image", str(path))]
        done = real_spec_here(*flags_of(vision), *more, text)
        assert done.returncode == 0, done.stderr
        assert done.stdout == expected(vision, text, images)
        texts.add(done.stdout)
    assert len(texts) > 1


def test_a_message_with_an_image(
    real_spec_here: Run, vision: TinyVisionModel, shown: list[Path]
) -> None:
    flags = ("--chat", "--image", str(shown[0]), "--json", "what is it")
    done = real_spec_here(*flags_of(vision), *flags)
    assert done.returncode == 0, done.stderr
    assert '"text"' in done.stdout


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (["--image", "no.png"], 1, "no.png: cannot be read: No such file"),
        (["--image", "."], 1, ".: cannot be read: Is a directory"),
        (["--image", "text.png"], 1, "text.png: not a PNG, JPEG, WebP, GIF or BMP image"),
        (["--image", "0.png", "--image-max-tokens", "0"], 2, "--image-max-tokens"),
        (["--image-min-tokens", "9", "--image-max-tokens", "8"], 2, "is more than"),
        (["--image", "0.png", "a <image> and <image>"], 1, "has 2 marks of images"),
        (["--image", "0.png", "-c", "8"], 1, "exceeds the available context size"),
    ],
)
def test_one_line_says_what_is_wrong(
    flags: list[str], code: int, message: str, real_spec_here: Run, vision: TinyVisionModel,
    shown: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.png").write_text("hello")
    (tmp_path / "0.png").write_bytes(shown[0].read_bytes())
    words = flags if " " in flags[-1] else [*flags, "hi"]
    done = real_spec_here(*flags_of(vision), *words)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_images_need_an_mmproj_file(
    real_spec_here: Run, vision: TinyVisionModel, shown: list[Path]
) -> None:
    plain = ("generate", "-m", str(vision.text), "-q", "hi")
    done = real_spec_here(*plain, "--no-mmproj", "--image", str(shown[0]))
    assert done.returncode == 2
    assert "--image needs the model's mmproj file: give it with --mmproj FILE" in done.stderr
    done = real_spec_here(*plain, "--image-max-tokens", "9")
    assert done.returncode == 2
    assert "--image-max-tokens is for --mmproj FILE" in done.stderr
    done = real_spec_here(*plain, "--mmproj", str(vision.text))
    assert done.returncode == 1
    assert "--mmproj takes the model's mmproj file" in done.stderr


def test_the_file_beside_the_model_is_found(
    real_spec_here: Run, vision: TinyVisionModel, shown: list[Path]
) -> None:
    text, image = "the <image> of", ["--image", str(shown[0])]
    spoken = [flag for flag in GREEDY if flag != "-q"]
    done = real_spec_here("generate", "-m", str(vision.text), "-c", "512", *spoken, *image, text)
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected(vision, text, shown[:1])
    assert f"mmproj     {vision.mmproj} (found beside the model; --no-mmproj" in done.stderr
    assert re.search(r"^images     1, \d+ tokens, encoded in \d+ ms$", done.stderr, re.MULTILINE)


def test_images_in_a_conversation(
    vision: TinyVisionModel, shown: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    setup = ChatSetup(None, TEMPLATE, None, {})
    with load_runtime(vision.text, "cpu", n_ctx=512, mmproj=vision.mmproj) as runtime:
        talk, output = setup.start(runtime), Console(quiet=True, verbose=False)
        params = GenerateParams(SamplingParams(temperature=0.0), max_tokens=4)
        loop = ChatLoop(runtime, talk, params, TextPrinter(output), output)
        loop._take(f"/image {shown[0]}")
        loop._take(f"/image {shown[1]}")
        assert not talk.images
        loop._take("the <image> and")
        assert [image.name for image in talk.images] == list(map(str, shown))
        first = talk.prompt()
        assert isinstance(first, ModelPrompt)
        assert len(first.runs) == 2
        loop._take("and more")  # with what was shown before
        assert len(talk.images) == 2
        assert talk.messages[1]["role"] == "assistant"
        for words, message in (
            ("/image no.png", "no.png: cannot be read"),
            ("/image", "/image needs the name of a file"),
        ):
            loop._take(words)
            assert message in capsys.readouterr().err
        loop._take(f"/image {shown[0]}")
        loop._take("<image> <image>")
        assert "has 2 marks of images" in capsys.readouterr().err
        for role in ("assistant", "user"):
            assert talk.take_back(role)
        assert len(talk.images) == 2
        for role in ("assistant", "user"):
            assert talk.take_back(role)
        assert not talk.images
        loop._take("/clear")
        assert not talk.messages


def test_a_server_that_sees(vision: TinyVisionModel, shown: list[Path]) -> None:
    data = base64.b64encode(shown[0].read_bytes()).decode()
    prompt = {"prompt_string": "the <__media__> of", "multimodal_data": [data]}
    body = {"prompt": prompt, "n_predict": 8, "temperature": 0.0}
    flags = (
        "-m",
        str(vision.text),
        "-mm",
        str(vision.mmproj),
        "-c",
        "512",
        "--image-max-tokens",
        "12",
    )
    with served(*flags) as server:
        reply = asyncio.run(ask(server.port, "POST", "/completion", body))
        assert reply.status == 200
        assert reply.json()["content"] == expected(vision, "the <image> of", shown[:1])


def test_a_server_without_its_mmproj_file(real_spec_here: Run, vision: TinyVisionModel) -> None:
    done = real_spec_here("serve", "-m", str(vision.text), "--mmproj", "no.gguf", "--port", "0")
    assert done.returncode == 1
    assert "no.gguf" in done.stderr
