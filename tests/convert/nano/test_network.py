"""The networks against `transformers` with the same weights, and the delta rule's forms."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from nextn.convert.nano import fusion, losses
from nextn.convert.nano.chunked_delta_rule import DeltaTerms, gated_delta_rule
from nextn.convert.nano.draft_attention import draft_attention
from nextn.convert.nano.nano_network import Network, convolved
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
    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[-1], v.shape[-1])
    rows = []
    for t in range(q.shape[1]):
        state = state * log_decay[:, t, :, None, None].exp()
        taken = (k[:, t, :, None, :] @ state).squeeze(-2)
        u = beta[:, t, :, None] * (v[:, t] - taken)
        state = state + k[:, t, :, :, None] * u[:, :, None, :]
        rows.append((q[:, t, :, None, :] @ state).squeeze(-2))
    return torch.stack(rows, 1)


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


def delta_rule_inputs(seed: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, 77, 3, 16, generator=g) for _ in range(3))
    log_decay, beta = (torch.rand(2, 77, 3, generator=g) for _ in range(2))
    return [q, torch.nn.functional.normalize(k, dim=-1), v, -log_decay, beta]


@pytest.mark.parametrize("chunk", [16, 32, 64])
def test_chunks_equal_the_recurrence(chunk: int) -> None:
    inputs = [x.requires_grad_() for x in delta_rule_inputs(3)]
    want, got = recurrent_delta_rule(*inputs), gated_delta_rule(DeltaTerms(*inputs), chunk)
    assert (got - want).abs().max() < 1e-4
    weight = torch.randn(want.shape, generator=torch.Generator().manual_seed(5))
    wanted = torch.autograd.grad(want, inputs, weight)
    for mine, theirs in zip(torch.autograd.grad(got, inputs, weight), wanted, strict=True):
        assert (mine - theirs).abs().max() < 1e-3 * max(1.0, float(theirs.abs().max()))


def test_repeated_keys_do_not_blow_up() -> None:
    """Equal keys, full strength, no decay: what powers of the system's matrix cannot solve."""
    k = torch.zeros(1, 64, 1, 16)
    k[..., 0] = 1
    v = torch.randn(1, 64, 1, 16, generator=torch.Generator().manual_seed(4))
    out = gated_delta_rule(DeltaTerms(k, k, v, torch.zeros(1, 64, 1), torch.ones(1, 64, 1)))
    assert (out - v).abs().max() < 1e-4  # the newest value replaces the one before


def test_convolution() -> None:
    x, weight = torch.randn(2, 9, 6), torch.randn(6, 1, 4)
    want = torch.nn.functional.conv1d(x.mT, weight, padding=3, groups=6)[..., :9].mT
    assert torch.allclose(convolved(x, weight), want, atol=1e-6)


def test_attention_in_blocks() -> None:
    inputs = [torch.randn(2, 3, 600, 16, requires_grad=True) for _ in range(3)]
    q, k, v = inputs
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    got = draft_attention(q, [(k, v)])
    assert torch.allclose(got, want, atol=1e-5)
    weight = torch.randn(want.shape)
    wanted = torch.autograd.grad(want, inputs, weight)
    for mine, theirs in zip(torch.autograd.grad(got, inputs, weight), wanted, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-4)


def test_the_loss_of_a_head_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients are made with it, a few rows at a time."""
    monkeypatch.setattr(losses, "LOGIT_ROWS", 7)
    network = randomise(Network(SMALL_DRAFT))
    hidden = torch.randn(2, 10, SMALL_DRAFT.hidden_size, requires_grad=True)
    targets = tokens()[:, :10]
    leaves = [hidden, network.lm_head.weight]
    want = torch.nn.functional.cross_entropy(
        network.lm_head(hidden).flatten(0, 1), targets.flatten()
    )
    got = losses.head_loss(network, hidden, targets)
    assert torch.allclose(got, want, atol=1e-6)
    wanted = torch.autograd.grad(3 * want, leaves)
    for mine, theirs in zip(torch.autograd.grad(3 * got, leaves), wanted, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-5)


@pytest.mark.exhaustive
def test_fused_loops_compute_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randint(0, 300, (2, 40 + losses.AHEAD))
    found, made = [], randomise(Network(SMALL_NANO))
    for is_fused in (False, True):
        network = copy.deepcopy(made)
        monkeypatch.setattr(fusion, "_compiled", False)
        if is_fused and not fusion.fuse_loops():
            pytest.skip("no C++ compiler")
        loss, mtp = losses.joint(network, rows)
        (loss + mtp).backward()
        found.append([loss, mtp, *(p.grad for p in network.parameters())])
    for plain, fast in zip(*found, strict=True):
        assert torch.allclose(plain, fast, atol=1e-4)
