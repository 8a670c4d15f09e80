"""The file says what the network says: in F32 to 1e-3, in Q8_0 nearly; MTP rows as well."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from support.mtp_acceptance import HeadRuns
from support.running import PAGES, Machine, Running, load

from nextn import core
from nextn.convert.nano.draft_attention import Past
from nextn.convert.nano.export import read_weights, tensor_data, write_model
from nextn.convert.nano.nano_network import Network
from nextn.convert.nano.nano_shapes import NanoShape
from nextn.convert.nano.nano_vocabulary import NanoVocabulary
from nextn.core.backend.interface import StateRoom
from nextn.core.backend.layers import Floats
from nextn.core.backend.step import StepPart, build_step
from nextn.core.errors import ConfigError
from nextn.core.gguf.reader import open_gguf
from nextn.core.models.drafters.mtp_network import H_NEXTN
from nextn.core.sampling.file_defaults import file_defaults

from .hf import randomise
from .test_network import SMALL_DRAFT, SMALL_NANO

LENGTH = 100
TEXT = "def f(x):\n    return x\n" * 40


@pytest.fixture(scope="module")
def vocabulary() -> NanoVocabulary:
    return NanoVocabulary.train([TEXT], 300)


def network(shape: NanoShape, vocabulary: NanoVocabulary) -> Network:
    return randomise(Network(dataclasses.replace(shape, vocab_size=len(vocabulary))))


@pytest.mark.parametrize("device", ["torch", "cpu"])
@pytest.mark.parametrize("shape", [SMALL_NANO, SMALL_DRAFT], ids=["hybrid", "plain"])
def test_logits_of_the_file(
    shape: NanoShape, device: str, vocabulary: NanoVocabulary, tmp_path: Path
) -> None:
    made = network(shape, vocabulary)
    ids = torch.randint(0, len(vocabulary), (1, LENGTH))
    with torch.no_grad():
        want = made(ids)[0].numpy()
    write_model(tmp_path / "f32.gguf", made, vocabulary, "F32")
    with core.load(tmp_path / "f32.gguf", device) as runtime:
        got = runtime.logits(ids[0].tolist())
    if device == "torch":
        assert np.abs(got - want).max() <= 1e-3
    else:  # activations become int8; how near that is, is tested with the kernels
        assert _near(got, want, 0.1 * want.std())


def _near(got: Floats, want: Floats, bound: float) -> bool:
    return bool(np.sqrt(np.square(got - want).mean()) <= bound)


def test_mtp_rows_of_the_file(vocabulary: NanoVocabulary, tmp_path: Path) -> None:
    made = network(SMALL_NANO, vocabulary)
    ids = torch.randint(0, len(vocabulary), (1, LENGTH))
    with torch.no_grad():
        hidden = made.model(ids)
        want = made.draft_rows(ids[:, 1:], hidden[:, :-1])[0].numpy()
    write_model(tmp_path / "f32.gguf", made, vocabulary, "F32")
    model, backend = load(tmp_path / "f32.gguf")
    trunk = Running(Machine(model, backend, taps=frozenset({H_NEXTN})))
    tapped = trunk.forward(ids[0].tolist()).taps[H_NEXTN]
    assert np.abs(tapped - hidden[0].numpy()).max() <= 1e-3
    (head,) = model.nextn
    state = backend.new_state(
        model.state_shape, StateRoom(n_pages=16, page_len=16, n_slots=1, window=4)
    )
    run = backend.compile(head.forward, state, max_rows=LENGTH, taps=frozenset({H_NEXTN}))
    piece = StepPart(ids[0, 1:].tolist(), 0, PAGES, first_position=1, n_out=LENGTH - 1)
    got = run(build_step([piece], tapped[:-1])).taps[H_NEXTN]
    assert np.abs(got - want).max() <= 1e-3


def test_training_drafts_as_the_runtime_does(vocabulary: NanoVocabulary, tmp_path: Path) -> None:
    """Chained steps in training see what a draft sees: true rows before it, then its own."""
    made = network(SMALL_NANO, vocabulary)
    ids = torch.randint(0, len(vocabulary), (1, 40))
    past: Past = []
    with torch.no_grad():
        hidden = made.model(ids)[:, :30]
        rows = [hidden]
        for i in range(3):
            rows.append(made.draft_rows(ids[:, i + 1 : i + 31], rows[-1], past))
    write_model(tmp_path / "f32.gguf", made, vocabulary, "F32")
    model, backend = load(tmp_path / "f32.gguf")
    for start in (0, 11, 29):
        head = HeadRuns(model, backend, 64, first=1)
        head.read(ids[0, 1 : start + 1].tolist(), hidden[0, :start].numpy(), 1)
        row = hidden[0, start : start + 1].numpy()
        for i in range(3):
            token = int(ids[0, start + 1 + i])
            _, row = head.step([token], row, start + 1 + i)
            assert np.abs(row - rows[i + 1][0, start].numpy()).max() <= 1e-3


def test_q8_0_as_the_gguf_package_writes_it() -> None:
    array = np.random.default_rng(0).normal(size=(7, 96)).astype(np.float32)
    array[2, :32] = 0
    want = gguf.quants.quantize(array, gguf.GGMLQuantizationType.Q8_0)
    made = np.asarray(tensor_data("blk.0.ffn_up.weight", array, "Q8_0").data)
    assert np.array_equal(made, want.reshape(-1))
    with pytest.raises(ConfigError, match="blocks of 32"):
        tensor_data("blk.0.ffn_up.weight", np.zeros((2, 33), np.float32), "Q8_0")


def test_quantised_is_near(vocabulary: NanoVocabulary, tmp_path: Path) -> None:
    made = network(SMALL_NANO, vocabulary)
    ids = torch.randint(0, len(vocabulary), (1, LENGTH))
    with torch.no_grad():
        want = made(ids)[0].numpy()
    write_model(tmp_path / "q8.gguf", made, vocabulary)
    with core.load(tmp_path / "q8.gguf", "torch") as runtime:
        assert _near(runtime.logits(ids[0].tolist()), want, 0.05 * want.std())


def test_the_tokenizer_of_the_file(vocabulary: NanoVocabulary, tmp_path: Path) -> None:
    write_model(tmp_path / "f32.gguf", network(SMALL_DRAFT, vocabulary), vocabulary, "F32")
    text = "def g(y):\n\n    return  12 + 'é'\t# <|fim_prefix|> \r\n"
    with core.load(tmp_path / "f32.gguf", "torch") as runtime:
        (want,) = vocabulary.encode([text])
        end = vocabulary.id_of("<|endoftext|>")
        assert runtime.tokenizer.encode(text) == [end, *want]
        assert runtime.tokenizer.decode(want, show_special=True) == text
        assert vocabulary.id_of("<|im_end|>") in runtime.tokenizer.eog_ids


def test_an_end_of_a_header_is_an_end_of_a_token(vocabulary: NanoVocabulary) -> None:
    """Else the newline that a prompt lacks would be half a token that never comes."""
    (whole,) = vocabulary.encode([TEXT])
    for end in ("def f(x):", "def f(x):\n    return x"):
        (cut,) = vocabulary.encode([end])
        assert whole[: len(cut)] == cut
    assert all(a < b for a, b in pairwise([0, len(whole)]))


@pytest.mark.parametrize("shape", [SMALL_NANO, SMALL_DRAFT], ids=["hybrid", "plain"])
def test_a_file_can_be_trained_further(
    shape: NanoShape, vocabulary: NanoVocabulary, tmp_path: Path
) -> None:
    made, path = network(shape, vocabulary), tmp_path / "made.gguf"
    write_model(path, made, vocabulary, "F32")
    again = Network(made.shape)
    read_weights(path, again)
    for name, value in made.state_dict().items():
        assert torch.allclose(again.state_dict()[name], value, atol=1e-6), name
    assert open_gguf(path).metadata["general.license"] == "PSF-2.0"
    write_model(path, made, vocabulary, "F32", has_packages=True)
    assert open_gguf(path).metadata.str("general.license").startswith("PSF-2.0 AND MIT")
    recommended = file_defaults(open_gguf(path).metadata)
    assert {"temperature", "top_p", "repeat_penalty", "repeat_last_n"} == recommended.keys()
    read = NanoVocabulary.of_gguf(path)
    assert read.tokens() == vocabulary.tokens()
    assert read.metadata() == vocabulary.metadata()
    assert list(read.encode([TEXT])) == list(vocabulary.encode([TEXT]))


def test_a_file_of_another_shape_is_refused(vocabulary: NanoVocabulary, tmp_path: Path) -> None:
    write_model(tmp_path / "made.gguf", network(SMALL_NANO, vocabulary), vocabulary, "F32")
    with pytest.raises(ConfigError, match="is not of the shape that is to be trained"):
        read_weights(tmp_path / "made.gguf", Network(SMALL_NANO))
