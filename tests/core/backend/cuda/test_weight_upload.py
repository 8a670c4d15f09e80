"""Weights on their way to the device: in pieces, by threads, each where it belongs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.blocks import form_of, random_blocks
from support.host_device import HostDevice
from support.tiny_models import TinyModel

from nextn.core.backend.cuda import weight_upload as uploads_module
from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.cuda.device_contract import Numpy
from nextn.core.backend.cuda.weight_upload import Uploads
from nextn.core.backend.cuda.weights import CudaMatrix, Use, use_of
from nextn.core.backend.layers import MatrixPart
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor, open_gguf
from nextn.core.models import build_model
from nextn.cuda_kernels.repack import gated_order, repack, unpack

Tiny = Callable[..., TinyModel]
N_IN = 512


@pytest.fixture
def device() -> HostDevice:
    """Pieces of a few groups, so that there are several."""
    made = HostDevice()
    made.staged_bytes = 130_000
    return made


def part(kind: str, *shape: int, name: str = "blk.0.x.weight", seed: int = 0) -> MatrixPart:
    rows = int(np.prod(shape[:-1]))
    data = random_blocks(kind, rows, shape[-1], seed).reshape(-1)
    return MatrixPart(Tensor(name, shape, find_format(kind), data))


def rows_of(part: MatrixPart, expert: int = 0) -> Numpy:
    *_, n_out, _ = part.tensor.shape
    rows: Numpy = part.tensor.data.reshape(-1, n_out, part.tensor.format.n_bytes(N_IN))[expert]
    return rows


def test_pieces_make_the_whole(device: HostDevice) -> None:
    parts = [part("Q6_K", 700, N_IN), part("Q6_K", 300, N_IN, seed=1)]
    made = Uploads(device).tiles("Q6_K", parts)
    rows = np.concatenate([rows_of(p) for p in parts])
    assert np.array_equal(made, repack("Q6_K", rows, N_IN))
    assert len(made) > 1.5 * device.most_staged, "the host never had all of it"


def test_row_orders_and_gates(device: HostDevice) -> None:
    order = np.random.default_rng(0).permutation(600)
    first, second = part("Q4_K", 600, N_IN), part("Q4_K", 600, N_IN, seed=2)
    first = MatrixPart(first.tensor, row_order=order)
    made = Uploads(device).tiles("Q4_K", [first, second], gated=True)
    rows = np.concatenate([rows_of(first)[order], rows_of(second)])[gated_order(600)]
    assert np.array_equal(made, repack("Q4_K", rows, N_IN))


def test_experts_one_behind_the_other(device: HostDevice) -> None:
    """Gates of one codebook, ups of another: both become int8."""
    gate, up = part("IQ2_XS", 5, 136, N_IN), part("IQ3_S", 5, 136, N_IN)
    made = Uploads(device).tiles("I8_K", [gate, up]).reshape(5, -1)
    form = form_of("I8_K")
    for expert in range(5):
        blocks = unpack("I8_K", made[expert], 272, N_IN).reshape(-1, form.block_bytes)
        expected = np.concatenate([p.tensor.floats()[expert] for p in (gate, up)])
        assert np.array_equal(form.dequantize(blocks).reshape(272, N_IN), expected)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_plain_rows_are_filled_up(device: HostDevice, kind: str) -> None:
    one = part(kind, 900, 100)
    made = Uploads(device).plain([one], as_stored=True)
    assert made.shape == (900, 104)
    stored = one.tensor.data.view(made.dtype).reshape(900, 100)
    assert np.array_equal(made[:, :100], stored)
    assert not made[:, 100:].any()
    floats = Uploads(device).plain([one], as_stored=False)
    assert np.array_equal(floats[:, :100], one.tensor.floats())


def test_plain_experts(device: HostDevice) -> None:
    one = part("F16", 3, 200, N_IN)
    made = Uploads(device).plain([one], as_stored=True)
    assert np.array_equal(made, one.tensor.data.view(np.uint16).reshape(3, 200, N_IN))


def test_what_is_asked_for_later_has_arrived_at_once(device: HostDevice) -> None:
    uploads = Uploads(device)
    uploads.is_loading = True
    one = part("Q8_0", 64, N_IN)
    early = uploads.tiles("Q8_0", [one])
    assert (early == 0xF5).all(), "still on its way"
    uploads.is_loading = False
    late = uploads.tiles("Q8_0", [one])
    assert np.array_equal(early, late)


def test_names_say_what_a_matrix_is_for() -> None:
    def use(*names: str) -> Use:
        parts = [part("Q8_0", 32, N_IN, name=f"blk.0.{name}.weight") for name in names]
        return use_of(parts, frozenset({"blk.0.token_embd.weight"}))

    assert use("token_embd") is Use.TABLE_AND_HEAD
    assert use("nextn.embed_tokens") is Use.TABLE
    assert use("attn_q", "attn_k") is Use.PRODUCT
    assert use("ffn_gate", "ffn_up") is Use.GATED
    assert use("ffn_down") is Use.PRODUCT
    assert use("ffn_gate_inp") is use("ffn_gate_inp_shexp") is Use.ROUTER
    assert use("ffn_gate_up_exps") is use("ffn_gate_shexp", "ffn_up_shexp") is Use.EXPERTS_GATED
    assert use("ffn_down_exps") is use("ffn_down_shexp") is Use.EXPERTS_DOWN


@pytest.mark.parametrize("family", ["qwen35moe", "qwen3"])
def test_every_tensor_is_sent_once(
    family: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At load, those of experts as well; a table that is the output matrix is no second array."""
    sent: list[str] = []
    original = CudaMatrix.prepare

    def noted(matrix: CudaMatrix) -> None:
        if matrix.uploads.device.has_memory:
            sent.extend(part.tensor.name for part in matrix.parts)
        original(matrix)

    monkeypatch.setattr(CudaMatrix, "prepare", noted)
    backend, file = CudaBackend(HostDevice()), open_gguf(tiny(family, quantise="Q8_0").path)
    build_model(file, backend)
    matrices = {name for name, tensor in file.tensors.items() if len(tensor.shape) > 1}
    assert sorted(sent) == sorted(name for name in matrices if "conv1d" not in name)


def test_an_interrupt_leaves_nobody_writing(
    device: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = 0

    def interrupted(*arguments: object) -> None:
        nonlocal running
        running += 1
        if running == 2:
            raise KeyboardInterrupt
        repack(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(uploads_module, "repack", interrupted)
    uploads = Uploads(device)
    with pytest.raises(KeyboardInterrupt):
        uploads.tiles("Q6_K", [part("Q6_K", 2000, N_IN)])
    assert running < 17, "what had not begun is not done"
