"""The networks against `transformers` with the same weights, and the delta rule's forms."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from nextn.convert.nano.chunked_delta_rule import gated_delta_rule
from nextn.convert.nano.nano_network import Network, ShortConv, draft_attention
from nextn.convert.nano.nano_shapes import DRAFT, NANO, NanoShape

from .hf import hf_model, hf_mtp, randomise

TOLERANCE = 1e-4  # logits have a standard deviation of about 1
LENGTH = 300  # past a block of queries of 256, and no multiple of a chunk

SMALL_NANO = dataclasses.replace(
    NANO,
    vocab_size=300,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    head_dim=32,
    linear_head_dim=16,
)
SMALL_DRAFT = dataclasses.replace(DRAFT, vocab_size=300, hidden_size=64, intermediate_size=96)


def recurrent_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """The definition, one token after the other."""
    state = v.new_zeros(*v.shape[:2], k.shape[-1], v.shape[-1])
    rows = []
    for t in range(q.shape[2]):
        state = state * log_decay[:, :, t, None, None].exp()
        taken = (k[:, :, t, None, :] @ state).squeeze(-2)
        u = beta[:, :, t, None] * (v[:, :, t] - taken)
        state = state + k[:, :, t, :, None] * u[:, :, None, :]
        rows.append((q[:, :, t, None, :] @ state).squeeze(-2))
    return torch.stack(rows, 2)


def tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 300, (2, LENGTH), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [SMALL_NANO, SMALL_DRAFT], ids=["hybrid", "plain"])
def test_logits_equal_transformers(shape: NanoShape) -> None:
    network = randomise(Network(shape))
    with torch.no_grad():
        want = hf_model(network)(tokens()).logits
        got = network(tokens())
    assert 0.3 < want.std() < 30
    assert (got - want).abs().max() <= TOLERANCE * max(1.0, float(want.std()))


def test_mtp_rows_equal_transformers() -> None:
    network = randomise(Network(SMALL_NANO))
    ids = tokens(1)
    with torch.no_grad():
        model = hf_model(network)
        hidden = model.model(ids).last_hidden_state
        want = hf_mtp(network, model).forward_layer(
            0,
            hidden[:, :-1],
            torch.arange(1, LENGTH)[None].expand(2, -1),
            mtp_cache=None,
            input_ids=ids[:, 1:],
        )
        own = network.model(ids)
        got = network.draft_rows(ids[:, 1:], own[:, :-1])
    assert (own - hidden).abs().max() <= TOLERANCE
    assert (got - want).abs().max() <= TOLERANCE


@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_chunks_equal_the_recurrence(chunk: int) -> None:
    g = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(2, 3, 77, 16, generator=g) for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    log_decay = -torch.rand(2, 3, 77, generator=g)
    beta = torch.rand(2, 3, 77, generator=g)
    want = recurrent_delta_rule(q, k, v, log_decay, beta)
    assert (gated_delta_rule(q, k, v, log_decay, beta, chunk) - want).abs().max() < 1e-4


def test_repeated_keys_do_not_blow_up() -> None:
    """Equal keys, full strength, no decay: what powers of the system's matrix cannot solve."""
    k = torch.zeros(1, 1, 64, 16)
    k[..., 0] = 1
    v = torch.randn(1, 1, 64, 16, generator=torch.Generator().manual_seed(4))
    out = gated_delta_rule(k, k, v, torch.zeros(1, 1, 64), torch.ones(1, 1, 64))
    assert (out - v).abs().max() < 1e-4  # the newest value replaces the one before


def test_convolution_and_its_gradient() -> None:
    conv = ShortConv(6, 4)
    x = torch.randn(2, 9, 6, requires_grad=True)
    want = torch.nn.functional.conv1d(x.mT, conv.weight, padding=3, groups=6)[..., :9].mT
    grad = torch.randn(2, 9, 6)
    wanted = torch.autograd.grad(want, [x, conv.weight], grad)
    got = conv(x)
    assert torch.allclose(got, want, atol=1e-6)
    for a, b in zip(torch.autograd.grad(got, [x, conv.weight], grad), wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_attention_in_blocks() -> None:
    q, k, v = (torch.randn(2, 3, 600, 16) for _ in range(3))
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.allclose(draft_attention(q, [(k, v)]), want, atol=1e-5)
