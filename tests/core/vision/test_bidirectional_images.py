"""Images whose rows see each other: where prompts are cut, what is kept, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.assistant_files import write_assistant
from support.dflash_files import write_dflash
from support.eagle3_files import write_eagle3
from support.gemma_towers import ROWS, SIDE
from support.other_towers import planes_of
from support.scripted import drain
from support.towers import TinyVisionModel, build_vision_model, picture

from nextn.core.engine.prompt_checks import check_images
from nextn.core.errors import ConfigError
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import SpecOptions
from nextn.core.state.embedded_rows import ImageRows, ModelPrompt
from nextn.core.state.sizes import PREFILL_CHUNK
from nextn.core.vision.image_encoder import image_bytes
from nextn.core.vision.image_file import ImageSize

GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=8, logprobs=4)


@pytest.fixture(scope="module")
def vision(tmp_path_factory: pytest.TempPathFactory) -> TinyVisionModel:
    return build_vision_model("gemma3", tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module")
def runtime(vision: TinyVisionModel) -> Any:
    with load_runtime(vision.text, "cpu", n_ctx=1024, mmproj=vision.mmproj, threads=1) as made:
        yield made


def rows_of(runtime: Runtime, seed: int) -> ImageRows:
    image = runtime.images.read(image_bytes(picture(50, 40, seed=seed), "image", bytes))
    prompt = runtime.encode_images(runtime.image_prompt(["", ""], [image]))
    (run,) = prompt.runs
    assert run.bidirectional
    return ImageRows(run.rows)


def prompt_behind(runtime: Runtime, n: int, *seeds: int) -> ModelPrompt:
    """So many tokens, images side by side, and a few tokens."""
    before = [3 + i % 90 for i in range(n)]
    return ModelPrompt.of([before, *(rows_of(runtime, seed) for seed in seeds), [7, 8, 9]])


def written(runtime: Runtime, *prompts: ModelPrompt) -> list[list[Any]]:
    """All at once, with nothing kept from before: tokens and their probabilities."""
    engine = runtime.new_engine(runtime.plan(len(prompts)))
    sequences = [engine.add(prompt, GREEDY) for prompt in prompts]
    return by_sequence(drain(engine), sequences)


def by_sequence(events: list[Any], sequences: list[Any]) -> list[list[Any]]:
    return [
        [(e.token, e.top_logprobs) for e in events if e.sequence == each.id] for each in sequences
    ]


def test_a_prompt_is_cut_outside_of_images(runtime: Runtime) -> None:
    """Wherever the image stands, the text behind it is that of the rows read at once."""
    for before in (PREFILL_CHUNK - 1, PREFILL_CHUNK - ROWS // 2, PREFILL_CHUNK - ROWS - 1, 5):
        prompt = prompt_behind(runtime, before, 1, 2)
        ((first, _), *_) = written(runtime, prompt)[0]
        reader = runtime.reader(len(prompt), len(prompt))  # one piece
        *_, logits = reader.logits(prompt)
        assert first == int(logits[-1].argmax())
        pieces = runtime.reader(len(prompt), ROWS + 1).logits(prompt)
        found = np.concatenate([piece.copy() for piece in pieces])
        np.testing.assert_array_equal(found, next(iter(reader.logits(prompt))))


def test_sequences_beside_each_other(runtime: Runtime) -> None:
    prompts = [
        prompt_behind(runtime, 5, 1),
        ModelPrompt([1, 2, 3]),
        prompt_behind(runtime, 230, 1, 2),
        prompt_behind(runtime, 80, 2),
    ]
    assert written(runtime, *prompts) == [written(runtime, prompt)[0] for prompt in prompts]


WRITERS: dict[str, Callable[..., Any]] = {
    "eagle3": write_eagle3, "dflash": write_dflash, "gemma4-assistant": write_assistant,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gemma3", "draft"),
        ("gemma3", "eagle3"),
        ("gemma3", "dflash"),
        ("gemma4", "gemma4-assistant"),
        ("gemma4", "eagle3"),
    ],
)
def test_drafts_behind_images_change_nothing(name: str, kind: str, tmp_path: Path) -> None:
    found = build_vision_model(name, tmp_path)
    drafter = found.text
    if kind in WRITERS:
        drafter = WRITERS[kind](tmp_path / f"{kind}.gguf", found.text).path
    spec = SpecOptions(types=(kind,), fixed=True, draft_n_max=3)
    with load_runtime(
        found.text, "cpu", n_ctx=1024, mmproj=found.mmproj, spec=spec, draft=drafter
    ) as runtime:
        prompts = [prompt_behind(runtime, 5, 1), prompt_behind(runtime, 230, 1, 2)]
        prompts.append(ModelPrompt([1, 2, 3]))
        plain = [written(runtime, prompt)[0] for prompt in prompts]
        engine = runtime.ready_engine(runtime.plan(len(prompts)))
        sequences = [engine.add(prompt, GREEDY) for prompt in prompts]
        assert by_sequence(drain(engine), sequences) == plain
        assert all(each.stats.draft_n for each in sequences)


def test_a_prefix_may_end_within_an_image(runtime: Runtime) -> None:
    """Rows that are kept have seen all of their image: the last one is read behind them."""
    prompt = ModelPrompt.of([list(range(3, 23)), rows_of(runtime, 1)])
    engine = runtime.new_engine(runtime.plan(1))
    found = []
    for n_cached in (0, len(prompt) - 1):
        sequence = engine.add(prompt, GREEDY)
        found.append([(e.token, e.top_logprobs) for e in drain(engine)])
        assert sequence.stats.cached_n == n_cached
    assert found[0] == found[1]


def test_an_image_sees_its_last_row_first(runtime: Runtime) -> None:
    """And text in front of it sees none of it."""
    image = rows_of(runtime, 1)
    changed = ImageRows(image.rows.copy())
    changed.rows[-1] += 1.0
    one, other = (
        runtime.logits(ModelPrompt.of([list(range(3, 13)), each, [7, 8]]))
        for each in (image, changed)
    )
    np.testing.assert_array_equal(one[:10], other[:10])
    assert (np.abs(one - other)[10:].max(axis=1) > 1e-4).all()


def test_rows_that_are_saved(runtime: Runtime) -> None:
    prompt = prompt_behind(runtime, 10, 1, 2)
    again = ModelPrompt.from_saved(prompt.tokens, prompt.rows_to_bytes())
    assert [run.bidirectional for run in again.runs] == [True, True]
    plain = ModelPrompt.of([prompt.tokens[:10], prompt.runs[0].rows])
    assert plain.tokens[10:] != prompt.tokens[10 : len(plain)]


def test_refusals(runtime: Runtime) -> None:
    prompt = prompt_behind(runtime, 10, 1)
    device: Any = SimpleNamespace(
        name="cuda", runs_towers=False, turns_by_axes=False, looks_ahead=False
    )
    with pytest.raises(ConfigError, match=r"^--device cuda has no attention in both directions"):
        check_images(prompt, runtime.model, device, 256)
    check_images(ModelPrompt([1, 2]), runtime.model, device, 256)
    with pytest.raises(ConfigError, match=f"has {ROWS} rows, .* in one step, of 32 at most"):
        check_images(prompt, runtime.model, runtime.backend, 32)
    hparams = SimpleNamespace(n_deepstack=0)
    causal: Any = SimpleNamespace(is_bidirectional=False, has_axes=False, hparams=hparams)
    with pytest.raises(ConfigError, match="rows at place 10 of the prompt see each other, which"):
        check_images(prompt, causal, runtime.backend, 256)


def test_pixels_are_those_of_transformers(runtime: Runtime) -> None:
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    processor = Gemma3ImageProcessorPil(size={"height": SIDE, "width": SIDE})
    projector = runtime.images.projector
    for size in ((640, 480), (31, 200), (SIDE, SIDE), (5, 7), (1000, 20)):
        peer = processor(images=[picture(*size)], return_tensors="np")
        plan = projector.plan(ImageSize(*size), projector.usual_budget)
        (prepared,) = projector.prepare(np.asarray(picture(*size)), plan)
        error = np.abs(planes_of(prepared) - np.asarray(peer["pixel_values"])[0]) * 0.5
        assert error.max() <= 1 / 255 + 1e-6
        assert (error < 1e-6).mean() >= 0.99
        assert plan.n_rows == ROWS
