"""Texts behind images, against llama.cpp with the same two files.

Images are of whole patches or tiles, which neither resizes: llama.cpp puts others on black, we
stretch them as the models' authors do. Its mergers have another form of GELU, which shifts logits
by a little. Its InternVL has the class token behind the patches and reads the table of positions
in the order of the file, in which that token is first: so it gets a file with the table turned. It
reads two images of Gemma 4 at once if they have as many patches, and wrongly if they are of two
shapes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.llama_cpp import LlamaCpp
from support.towers import TOWERS, TinyVisionModel, build_vision_model, picture, write_mmproj

from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams, logit_biases
from nextn.core.vision.image_encoder import image_bytes
from nextn.core.vision.image_prompt import place_images, split_at_marks

TEXTS = ("In <image> there is", "In the first <image> and then in <image> there is")
# Sizes of two images.
SIZES = {name: ((256, 128), (128, 192)) for name in TOWERS if name.startswith("qwen3")} | {
    "qwen2vl": ((224, 112), (112, 168)),
    "qwen2.5vl": ((224, 112), (112, 168)),
    "idefics3": ((64, 32), (64, 64)),
    "internvl": ((32, 32), (64, 64)),
    "pixtral": ((96, 64), (64, 112)),
    "mistral3": ((112, 84), (84, 140)),
    "gemma3": ((96, 96), (96, 96)),
    "gemma4": ((240, 168), (240, 168)),
}
N = 12
# Bytes of which none alone is a character, as llama.cpp's server keeps those back with what was
# likely in their place, and tokens that end a text.
BANNED = (*range(128, 256), 509, 510, 511)
NEAR = 0.01  # between logarithms of probabilities


def written_here(
    found: TinyVisionModel, text: str, images: list[bytes]
) -> list[tuple[int, dict[int, float]]]:
    """Tokens, and what each was taken from."""
    bias = logit_biases(dict.fromkeys(BANNED, -np.inf))
    greedy = SamplingParams(temperature=0.0, logit_bias=bias)
    params = GenerateParams(greedy, max_tokens=N, ignore_eos=True, logprobs=20)
    most = 70 if found.case.projector == "gemma4v" else None  # of which these images have so many
    with load_runtime(
        found.text, "cpu", n_ctx=256, mmproj=found.mmproj, threads=1, image_max_tokens=most
    ) as runtime:
        read = [runtime.images.read(data) for data in images]
        pieces = split_at_marks(text, len(images))
        prompt = place_images(pieces, read, runtime.images.projector, runtime.tokenizer)
        made = runtime.generate(runtime.encode_images(prompt), params)
        return [(event.token, dict(event.top_logprobs)) for event in made]


def turn_positions(tensors: dict[str, Any]) -> None:
    table = tensors["v.position_embd.weight"]
    tensors["v.position_embd.weight"] = np.roll(table, -1, axis=0)


@pytest.mark.peer
@pytest.mark.parametrize("name", SIZES)
def test_the_same_text(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    found = build_vision_model(name, tmp_path)
    theirs_mmproj = found.mmproj
    if name == "internvl":
        theirs_mmproj = tmp_path / "turned.gguf"
        write_mmproj(theirs_mmproj, found.case, found.hf, tensors=turn_positions)
    for text in TEXTS:
        sizes = SIZES[name][: text.count("<image>")]
        images = [image_bytes(picture(w, h, seed=w // 32), "image", bytes) for w, h in sizes]
        ours = written_here(found, text, images)
        with capfd.disabled(), LlamaCpp(found.text, mmproj=theirs_mmproj) as peer:
            pieces = text.split("<image>")
            if name == "gemma3":  # without the empty lines around images that its authors have
                pieces = "\n\n<image>\n\n".join(pieces).split("<image>")
            theirs = peer.behind_images(pieces, images, N, BANNED)
        if None in theirs.logprobs[0].values():  # JSON's word for it
            pytest.skip("llama.cpp computes NaN behind Pixtral's images in some processes")
        n_compared, near = 0, NEAR
        for (token, logprobs), other, likely in zip(
            ours, theirs.tokens, theirs.logprobs, strict=False
        ):
            both = logprobs.keys() & likely.keys()
            n_compared += len(both)
            for each in both:
                assert np.isclose(logprobs[each], likely[each], rtol=1e-3, atol=near)
            if token != other:
                assert abs(logprobs[token] - logprobs[other]) < NEAR, "not a near tie"
                break
            near = 5 * NEAR  # behind tokens of one's own, errors of the cache and the state add up
        assert n_compared >= 15
