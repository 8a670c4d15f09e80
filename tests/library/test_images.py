"""`nextn.load(mmproj=...)`: images in prompts, from paths, bytes and Pillow."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.towers import TinyVisionModel, build_vision_model, picture

import nextn
from nextn.core.errors import ConfigError, InputError

pytestmark = pytest.mark.threads


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> TinyVisionModel:
    return build_vision_model("qwen3vl", tmp_path_factory.mktemp("vision"))


@pytest.fixture(scope="module")
def model(vision: TinyVisionModel) -> Iterator[nextn.LanguageModel]:
    with nextn.load(vision.text, n_ctx=512, mmproj=vision.mmproj, image_max_tokens=40) as loaded:
        yield loaded


def test_sources_of_an_image(model: nextn.LanguageModel, tmp_path: Path) -> None:
    image, path = picture(90, 60), tmp_path / "a.png"
    image.save(path)
    found = {
        model.generate("the <image> of", images=[source], temperature=0.0, max_tokens=8).text
        for source in (path, str(path), path.read_bytes(), image)
    }
    assert len(found) == 1
    prompt = model.with_images("the <image> of", [image])
    assert model.generate(prompt, temperature=0.0, max_tokens=8).text in found
    pieces = model.stream("the <image> of", images=[path], temperature=0.0, max_tokens=8)
    assert "".join(piece.text for piece in pieces) in found
    call = model.agenerate("the <image> of", images=[path], temperature=0.0, max_tokens=8)
    assert asyncio.run(call).text in found
    assert model.logits(prompt).shape == (len(prompt), model.n_vocab)


def test_a_chat_with_an_image(model: nextn.LanguageModel) -> None:
    image = picture(90, 60)
    parts = [{"type": "text", "text": "what is "}, {"type": "image", "image": image}]
    prompt = model.chat_prompt([{"role": "user", "content": parts}])
    assert not isinstance(prompt, list)
    assert prompt.n_rows == 3 * 4  # at least 8
    plain = model.chat_prompt([{"role": "user", "content": "what is "}])
    assert set(plain[:]) <= {*prompt[:]}
    answer = model.chat([{"role": "user", "content": parts}], temperature=0.0, max_tokens=4)
    assert answer.stop_reason


def test_what_cannot_be_an_image(model: nextn.LanguageModel, vision: TinyVisionModel) -> None:
    with pytest.raises(InputError, match=r"no\.png: cannot be read"):
        model.generate("hi", images=["no.png"])
    with pytest.raises(InputError, match=r"image 2: not a PNG"):
        model.generate("hi", images=[picture(40, 40), b"no"])
    with pytest.raises(TypeError, match="a prompt that is a str"):
        model.generate([1, 2], images=[b"no"])
    with pytest.raises(ConfigError, match="parts of a message"):
        model.chat_prompt([{"role": "user", "content": [{"type": "sound"}]}])
    with (
        nextn.load(vision.text, n_ctx=64) as blind,
        pytest.raises(ConfigError, match="give it with mmproj FILE"),
    ):
        blind.generate("hi", images=[picture(40, 40)])
