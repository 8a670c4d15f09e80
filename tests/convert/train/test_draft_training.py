"""Drafters in training compute what the runtime computes, and learn."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from support.network_drafts import N_CTX, SPEC, Tiny, load, noted_drafts
from support.running import random_tokens
from support.vocab import N_VOCAB
from torch import Tensor

from nextn.convert.train import dflash_network
from nextn.convert.train.dflash_network import DFlashNetwork
from nextn.convert.train.draft_attention import Past
from nextn.convert.train.draft_export import DraftingNetwork, write_drafter
from nextn.convert.train.draft_loss import draft_loss
from nextn.convert.train.draft_texts import LENGTH, draft_texts
from nextn.convert.train.draft_trainer import DraftTrainer, ReadText, batches
from nextn.convert.train.draft_training import main
from nextn.convert.train.drafter_shape import DrafterShape
from nextn.convert.train.eagle3_network import Eagle3Network
from nextn.convert.train.opening_lines import OpeningLines
from nextn.convert.train.training_schedule import TrainingBudget
from nextn.convert.train.training_target import TrainingTarget, balance, read_features
from nextn.core.errors import ConfigError
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import SpecOptions

NO_SPEC = SpecOptions(types=("none",))
MAKERS: dict[str, Callable[[DrafterShape, TrainingTarget, Tensor], DraftingNetwork]] = {
    "eagle3": Eagle3Network,
    "dflash": lambda shape, target, scale: DFlashNetwork(
        replace(shape, num_hidden_layers=2), target, scale
    ),
    "dspark": lambda shape, target, scale: DFlashNetwork(
        replace(shape, num_hidden_layers=1), target, scale, rank=8
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(3)


def plain(path: Path) -> Runtime:
    return load_runtime(path, "cpu", n_ctx=N_CTX, spec=NO_SPEC)


def shape_for(target: TrainingTarget) -> DrafterShape:
    return DrafterShape(
        hidden_size=target.width, intermediate_size=64,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    )  # fmt: skip


def read(runtime: Runtime, target: TrainingTarget, n: int, length: int = 40) -> list[ReadText]:
    """Texts that repeat a few tokens, which is easy to learn."""
    made = [random_tokens(5, seed, N_VOCAB // 2) * (length // 5) for seed in range(n)]
    rows = read_features(runtime, target.layers, made)
    return [ReadText(torch.tensor(text), each) for text, each in zip(made, rows, strict=True)]


def stirred(network: DraftingNetwork) -> DraftingNetwork:
    """With matrices that do something: those that begin as zero hide the layers."""
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0.0, parameter.shape[1] ** -0.5)
            else:
                parameter.normal_(1.0, 0.2)
    return network


def eagle3_logits(
    network: Eagle3Network,
    target: TrainingTarget,
    tokens: Tensor,
    features: Tensor,
    drafted: Tensor,
) -> Tensor:
    hidden, rows = network.encode(features), []
    past: Past = []
    read_tokens = tokens[:, 1:]
    for i in range(drafted.shape[1]):
        hidden = network(target.embed(read_tokens), hidden, past)
        rows.append(network.output_norm(hidden)[:, -1] @ target.head.T)
        read_tokens = read_tokens.clone()
        read_tokens[:, -1] = drafted[:, i]
    return torch.stack(rows, 1)[0]


def dflash_logits(
    network: DFlashNetwork,
    target: TrainingTarget,
    tokens: Tensor,
    features: Tensor,
    drafted: Tensor,
) -> Tensor:
    anchors = torch.tensor([[tokens.shape[1] - 1]])
    n = drafted.shape[1]
    rows = network(target, tokens, features, anchors, n)
    if network.rank:
        whole = torch.cat([tokens, drafted], 1)
        rows = rows + network.corrections(target, whole, anchors[..., None] + torch.arange(n))
    logits: Tensor = rows[0, 0] @ target.head.T
    return logits


@pytest.mark.parametrize("name", MAKERS)
@torch.no_grad()
def test_the_runtime_drafts_the_same(
    name: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dflash_network, "WINDOW", 24)  # shorter than the texts
    path = tiny("qwen35").path
    with plain(path) as runtime:
        target = TrainingTarget(runtime)
        scale = balance([text.features for text in read(runtime, target, 3)], target.width)
    network = stirred(MAKERS[name](shape_for(target), target, scale))
    write_drafter(tmp_path / "d.gguf", network, target, "F32")
    drafter = network.architecture
    with load(path, tmp_path / "d.gguf", "torch", replace(SPEC, types=(drafter,))) as runtime:
        drafts, taps = noted_drafts(runtime, drafter, network.layers)
        ends = sorted(runtime.tokenizer.eog_ids)  # which are not drafted
    n_compared = 0
    for text, made in drafts:
        tokens, drafted = torch.tensor([text]), torch.tensor([made.tokens])
        features = torch.from_numpy(taps[: len(text)]).float()[None]
        if isinstance(network, Eagle3Network):
            logits = eagle3_logits(network, target, tokens, features[:, :-1], drafted)
        else:
            logits = dflash_logits(network, target, tokens, features, drafted)
        logits[:, ends] = -torch.inf
        found = logits.gather(1, drafted[0, :, None])[:, 0]
        assert (found >= logits.max(1).values - 1e-3).all()
        n_compared += len(made.tokens)
    assert n_compared > 30


@pytest.mark.parametrize("name", MAKERS)
def test_training_lowers_the_loss(name: str, tiny: Tiny) -> None:
    with plain(tiny("qwen35").path) as runtime:
        target = TrainingTarget(runtime)
        texts = read(runtime, target, 24)
    scale = balance([text.features for text in texts], target.width)
    network = MAKERS[name](shape_for(target), target, scale)
    budget = TrainingBudget(tokens=30 * 4 * 40)
    trainer = DraftTrainer(network, target, texts, budget, n_held_out=4, rows=4)
    before, saved = trainer.measure(), []
    trainer.run(lambda: saved.append(trainer.step))
    assert trainer.step == saved[-1] == 30
    assert trainer.measure() < before - 0.15


def test_the_loss_is_cross_entropy() -> None:
    rows, head = torch.randn(300, 8, requires_grad=True), torch.randn(50, 8)
    wanted, weights = torch.randn(300, 50).softmax(-1), torch.rand(300)
    loss = draft_loss(rows, head, wanted, weights)
    (found,) = torch.autograd.grad(3 * loss, rows)
    each = -(wanted * (rows @ head.T).log_softmax(-1)).sum(-1)
    plain = (each * weights).sum() / weights.sum()
    (expected,) = torch.autograd.grad(3 * plain, rows)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, expected)


def test_the_loss_of_acceptance_goes_from_entropy_to_rejections() -> None:
    rows, head = torch.randn(300, 8, requires_grad=True), torch.randn(50, 8)
    wanted, weights = torch.randn(300, 50).softmax(-1), torch.rand(300)
    loss = draft_loss(rows, head, wanted, weights, of_acceptance=True)
    (found,) = torch.autograd.grad(loss, rows)
    log_probs = (rows @ head.T).log_softmax(-1)
    accepted = torch.minimum(log_probs.exp(), wanted).sum(-1)
    share = (-3 * accepted.detach()).exp()
    each = share * -(wanted * log_probs).sum(-1) + (1 - share) * (1 - accepted)
    plain = (each * weights).sum() / weights.sum()
    (expected,) = torch.autograd.grad(plain, rows)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, expected)


def test_padding_changes_nothing(tiny: Tiny) -> None:
    """A text beside a longer one has the loss that it has alone."""
    with plain(tiny("qwen35").path) as runtime:
        target = TrainingTarget(runtime)
        (text,) = read(runtime, target, 1)
    network = stirred(Eagle3Network(shape_for(target), target, torch.ones(target.n_features)))
    sizes, padded = torch.tensor([40]), 12
    alone = network.loss(target, text.tokens[None], text.features[None].float(), sizes)
    tokens = torch.cat([text.tokens, torch.zeros(padded, dtype=torch.long)])[None]
    features = torch.cat([text.features, torch.ones(padded, target.n_features)])[None].float()
    longer = network.loss(target, tokens, features, sizes)
    # The last drafts of a text alone are left out, as they would need tokens behind its end.
    assert abs(alone.item() - longer.item()) < 0.05 * alone.item()


def test_features_do_not_depend_on_the_text_before(tiny: Tiny) -> None:
    with plain(tiny("qwen35").path) as runtime:
        layers = TrainingTarget(runtime).layers
        texts = [random_tokens(n, n, N_VOCAB) for n in (50, 20, 35)]
        together = list(read_features(runtime, layers, texts))
        (alone,) = read_features(runtime, layers, texts[2:])
    assert torch.equal(together[2], alone)


def test_texts_are_written_and_cut(tiny: Tiny) -> None:
    body = "    total = first + second\n    return total"
    source = "".join(f"def add_{i}(first, second):\n{body} + {i}\n\n" for i in range(60))
    lines, path = OpeningLines.of([source]), tiny("qwen35").path
    with load_runtime(path, "cpu", n_ctx=2 * LENGTH, spec=NO_SPEC) as runtime:
        made, again = (list(draft_texts(runtime, lines, 30, seed=2)) for _ in range(2))
    assert made == again
    assert len(made) == 30
    assert all(0 < len(text) <= LENGTH for text in made)


def test_batches_hold_texts_of_about_one_length() -> None:
    lengths = random.Random(1).choices(range(5, 50), k=40)
    texts = [ReadText(torch.full((n,), n), torch.ones(n, 6)) for n in lengths]
    order = batches(texts, 4, seed=1)
    spans, seen = [], []
    for _ in range(10):
        tokens, features, sizes, _ = next(order)
        assert features.shape[:2] == tokens.shape
        spans.append(int(sizes.max() - sizes.min()))
        seen += sizes.tolist()
    assert sorted(seen) == sorted(lengths)
    assert np.mean(spans) < 12


def test_the_command_trains_and_goes_on(tmp_path: Path) -> None:
    kept, out = tmp_path / "kept.pt", tmp_path / "e.gguf"
    with load_runtime(None, "cpu", n_ctx=N_CTX, spec=NO_SPEC) as runtime:
        texts = read(runtime, TrainingTarget(runtime), 4 + 8, length=20)
    torch.save([(text.tokens, text.features) for text in texts], kept)
    arguments = ["eagle3", "--out", str(out), "--kept", str(kept), "--minutes", "0.003"]
    arguments += ["--held-out", "4"]
    main(arguments)
    main([*arguments, "--start", str(out.with_suffix(".pt"))])
    spec = replace(SPEC, types=("eagle3",))
    with load_runtime(None, "cpu", n_ctx=N_CTX, draft=out, spec=spec) as runtime:
        assert len(list(runtime.generate("def f(x):", GenerateParams(max_tokens=8)))) == 8
        assert runtime.stats.draft_n
    with pytest.raises(ConfigError, match="another network than dflash"):
        main(["dflash", *arguments[1:], "--start", str(out.with_suffix(".pt"))])
    torch.save([(text.tokens, text.features[:, 1:]) for text in texts], kept)
    with pytest.raises(ConfigError, match="another model"):
        main(arguments)


def test_too_few_texts(tiny: Tiny) -> None:
    with plain(tiny("qwen35").path) as runtime:
        target = TrainingTarget(runtime)
        texts = read(runtime, target, 5)
    network = Eagle3Network(shape_for(target), target, torch.ones(target.n_features))
    with pytest.raises(ConfigError, match="5 texts are too few"):
        DraftTrainer(network, target, texts, TrainingBudget(tokens=100), n_held_out=4)
