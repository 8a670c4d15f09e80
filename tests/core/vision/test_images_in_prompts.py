"""Texts behind images: against `transformers`, with speculation, and with the prefix cache."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.scripted import drain
from support.towers import TinyVisionModel, build_vision_model, picture

from nextn.core.backend.reference.backend import ReferenceBackend
from nextn.core.engine.prompt_checks import check_axes
from nextn.core.errors import ConfigError, InputError, ModelError
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import SpecOptions
from nextn.core.state.embedded_rows import ModelPrompt
from nextn.core.vision.image_encoder import image_bytes
from nextn.core.vision.image_file import decode
from nextn.core.vision.image_prompt import (
    ImagePrompt,
    PlacedImage,
    place_images,
    split_at_marks,
)

FAMILIES = (
    "qwen2vl", "qwen2.5vl", "qwen3vl", "qwen35", "idefics3", "internvl", "pixtral", "mistral3",
    "gemma3", "gemma4", "gemma4-inputs",
)  # fmt: skip
TILED = ("Idefics3", "InternVL")
TEXT = "In the first <image> and then in <image> there is"
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=12)


@pytest.fixture(scope="module", params=FAMILIES)
def vision(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TinyVisionModel:
    return build_vision_model(request.param, tmp_path_factory.mktemp("vision"))


def opened(found: TinyVisionModel, device: str, **more: Any) -> Runtime:
    usual: dict[str, Any] = {"n_ctx": 512, "mmproj": found.mmproj, "threads": 1}
    return load_runtime(found.text, device, **usual | more)


def prompt_of(runtime: Runtime, text: str, *sizes: tuple[int, int], seed: int = 0) -> ImagePrompt:
    images = [
        runtime.images.read(image_bytes(picture(*size, seed=seed + i), "image", bytes))
        for i, size in enumerate(sizes)
    ]
    pieces = split_at_marks(text, len(images))
    return place_images(pieces, images, runtime.images.projector, runtime.tokenizer)


def logits_of(found: TinyVisionModel, runtime: Runtime, prompt: ImagePrompt) -> Any:
    """`transformers` sees the tokens of places, and finds the rows and their positions itself."""
    tokens: list[int] = []
    images = []
    for part in prompt.parts:
        if isinstance(part, PlacedImage):
            plan = part.image.plan
            pixels = decode(part.image.data, part.image.name)
            images.append((runtime.images.projector.prepare(pixels, plan), plan))
            tokens += found.case.family.tokens_of(part)
        else:
            tokens += part
    return found.logits(tokens, images)


@pytest.mark.parametrize(("device", "most"), [("torch", 1e-4), ("cpu", 0.02)])
def test_logits_behind_two_images(device: str, most: float, vision: TinyVisionModel) -> None:
    with opened(vision, device, n_ctx=1024) as runtime:
        prompt = prompt_of(runtime, TEXT, (90, 200), (230, 64))
        want = logits_of(vision, runtime, prompt)
        found = runtime.logits(runtime.encode_images(prompt))
    assert found.shape == want.shape
    assert np.abs(found - want).max() / max(1.0, want.std()) <= most


def run(runtime: Runtime, prompts: list[ModelPrompt], types: tuple[str, ...]) -> list[list[Any]]:
    from msgspec.structs import replace

    drafter = None
    if types:
        options = SpecOptions(types=types, fixed=True, draft_n_max=3)
        drafter = build_speculator(replace(runtime.setting(3), options=options))
    engine = runtime.new_engine(runtime.plan(3), drafter)
    sequences = [engine.add(prompt, GREEDY) for prompt in prompts]
    events = drain(engine)
    return [
        [event.token for event in events if event.sequence == sequence.id] for sequence in sequences
    ]


def test_speculation_behind_an_image_changes_nothing(vision: TinyVisionModel) -> None:
    with opened(vision, "cpu") as runtime:
        prompt = runtime.encode_images(prompt_of(runtime, "the the the <image> the", (120, 90)))
        other = ModelPrompt([1, 2, 3])
        plain = run(runtime, [prompt], ())[0]
        assert plain == [event.token for event in runtime.generate(prompt, GREEDY)]
        for types in (("ngram-mod",), ("suffix",)):
            assert run(runtime, [prompt, other, prompt], types)[::2] == [plain, plain]


def test_the_prefix_cache_knows_images(vision: TinyVisionModel) -> None:
    """A text that goes on finds the whole of what was read, with the same image and no other."""
    with opened(vision, "cpu") as runtime:

        def read(seed: int, more: list[int]) -> tuple[int, list[int]]:
            prompt = prompt_of(runtime, "the <image> and", (200, 200), seed=seed)
            made = runtime.encode_images(prompt)
            made = ModelPrompt([*made.tokens, *more], made.runs)
            tokens = [event.token for event in runtime.generate(made, GREEDY)]
            return runtime.stats.cached_n, tokens

        n_cached, written = read(0, [])
        assert n_cached == 0
        n_cached, again = read(0, [*written, 1, 2])
        assert n_cached > 36 + 8  # rows of the image at least, and tokens behind it
        (before, *_), other = prompt_of(runtime, "the <image> and", (9, 9)).parts, [*written, 1, 2]
        assert read(1, other)[0] <= len(before)
        assert read(0, [*written, 1, 2])[1] == again


def test_rows_of_one_image_are_kept(vision: TinyVisionModel) -> None:
    with opened(vision, "cpu") as runtime:
        encoder, (image,) = runtime.images, prompt_of(runtime, "<image>", (64, 64)).images
        first = list(encoder.encode(image))
        assert first
        assert not list(encoder.encode(image))  # no work
        encoder._cache_bytes = 1
        assert list(encoder.encode(prompt_of(runtime, "<image>", (64, 65)).images[0]))
        assert len(encoder._rows) == 1


def test_where_images_stand() -> None:
    assert split_at_marks("a <image> b <__media__> c", 2) == ["a ", " b ", " c"]
    assert split_at_marks("a <image> b", 3) == ["", "", "a ", " b"]
    assert split_at_marks("a <image> b", 0) == ["a <image> b"]
    with pytest.raises(InputError, match=r"2 marks of images .* and there are 1"):
        split_at_marks("<image> <image>", 1)


def test_tokens_that_are_there_are_not_repeated(vision: TinyVisionModel) -> None:
    with opened(vision, "cpu") as runtime:
        plain = prompt_of(runtime, "a<image>b", (64, 64))
        projector = runtime.images.projector
        written = prompt_of(runtime, f"a{projector.begin}<__media__>{projector.end}b", (64, 64))
        assert [p for p in plain.parts if isinstance(p, list)] == [
            p for p in written.parts if isinstance(p, list)
        ]


def test_refusals(vision: TinyVisionModel, tmp_path: Path) -> None:
    # Pixtral has rows behind lines, so that 2 x 2 would be 5; others have a square.
    n_rows = {"pixtral": 1, "gemma3": 36}.get(vision.case.projector, 4)
    with opened(vision, "cpu", image_max_tokens=4) as runtime:
        assert prompt_of(runtime, "", (500, 500)).images[0].n_rows == n_rows
    if vision.case.name not in TILED and n_rows != 36:
        with opened(vision, "cpu", image_min_tokens=600) as runtime:
            prompt = prompt_of(runtime, "", (64, 64))
            with pytest.raises(ConfigError, match="exceeds the available context size of 512"):
                runtime.encode_images(prompt)
    with (
        load_runtime(vision.text, "cpu", n_ctx=64) as runtime,
        pytest.raises(ConfigError, match="give it with --mmproj FILE"),
    ):
        _ = runtime.images
    with pytest.raises(ModelError, match=r"expected 'clip': --mmproj takes the model"):
        load_runtime(vision.text, "cpu", mmproj=vision.text)
    with pytest.raises(ConfigError, match="--image-min-tokens is for --mmproj"):
        load_runtime(vision.text, "cpu", image_min_tokens=4)
    with pytest.raises(ConfigError, match=r"--image-min-tokens 8 is more than --image-max-tokens"):
        load_runtime(
            vision.text, "cpu", mmproj=vision.mmproj, image_min_tokens=8, image_max_tokens=4
        )


def test_a_device_that_adds_no_rows_behind_layers(vision: TinyVisionModel) -> None:
    device: Any = SimpleNamespace(name="cuda", runs_towers=False, turns_by_axes=True)
    with opened(vision, "cpu") as runtime:
        prompt = runtime.encode_images(prompt_of(runtime, "a <image>", (64, 64)))
        check_axes(ModelPrompt([1, 2]), runtime.model, device)
        if runtime.model.hparams.n_deepstack:
            with pytest.raises(ConfigError, match=r"^--device cuda does not add rows behind"):
                check_axes(prompt, runtime.model, device)
        else:
            check_axes(prompt, runtime.model, device)


def test_a_tower_beside_a_device_that_runs_none(
    vision: TinyVisionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on the CPU, whatever the model is on."""
    with opened(vision, "torch") as runtime:
        own = runtime.encode_images(prompt_of(runtime, "a <image>", (64, 64)))
    monkeypatch.setattr(ReferenceBackend, "runs_towers", False)
    with opened(vision, "torch") as runtime:
        assert runtime.images._own_backend is not None
        prompt = prompt_of(runtime, "a <image>", (64, 64))
        found = runtime.encode_images(prompt)
    for run, other in zip(found.runs, own.runs, strict=True):
        np.testing.assert_allclose(run.rows, other.rows, atol=2e-3)
