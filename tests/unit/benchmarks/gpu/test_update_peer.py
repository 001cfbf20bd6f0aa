"""The trainer's peer: its rows by hand, its loss without chunks, and the learner's gradient norm."""

import pytest
import torch
import torch.nn.functional as F

from benchmarks.gpu import update_peer
from benchmarks.gpu.random_models import SMALL, TINY_VOCABULARY, build_model
from benchmarks.gpu.section_run import SectionRun
from benchmarks.gpu.update_peer import UpdatePeer, compute_chunked_loss, pad
from benchmarks.training.utilisation import OBJECTIVE, OPTIMISER, draw_batch
from trainer.algorithm.forward import PackingConfig
from trainer.algorithm.learner import Learner

pytestmark = pytest.mark.unit


def test_pad__two_samples_by_hand__are_rows_of_the_longer_one() -> None:
    batch = draw_batch([3, 1], prompt=2, vocabulary=50)
    padded = pad(batch, torch.device("cpu"))
    first, second = batch.samples
    assert padded.tokens.tolist() == [[*first.prompt, *first.tokens[:2]], [*second.prompt, 0, 0]]
    assert padded.places.tolist() == [1, 2, 3, 5]
    assert padded.targets.tolist() == [*first.tokens, *second.tokens]
    weight = batch.weights[0]
    assert padded.factors.tolist() == pytest.approx([-weight / 2] * 3 + [batch.weights[1] / 2])


def test_compute_chunked_loss__small_chunks__have_the_loss_and_gradient_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    padded = pad(draw_batch([7], prompt=2, vocabulary=20), torch.device("cpu"))
    torch.manual_seed(0)
    states, weight = torch.randn(7, 4, requires_grad=True), torch.randn(20, 4, requires_grad=True)
    wanted = (F.cross_entropy(states @ weight.T, padded.targets, reduction="none") * padded.factors).sum()
    wanted_gradients = torch.autograd.grad(wanted, [states, weight])
    monkeypatch.setattr(update_peer, "CHUNK", 3)
    found = compute_chunked_loss(states, weight, padded)
    torch.testing.assert_close(found, wanted)
    for ours, theirs in zip(torch.autograd.grad(found, [states, weight]), wanted_gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_update__both_sides__have_the_same_norm_and_change_their_masters(run: SectionRun) -> None:
    batch = draw_batch([9, 4, 6, 6], prompt=5, vocabulary=TINY_VOCABULARY, siblings=2)
    shape = PackingConfig(seq_len=64, micro_batch_size=1, compute_dtype="bfloat16")
    learner = Learner(build_model(run, SMALL), optimiser=OPTIMISER, objective=OBJECTIVE, shape=shape)
    (metrics,) = learner.learn([batch])
    peer = UpdatePeer(build_model(run, SMALL), batch)
    before = [each.clone() for each in peer.masters]
    assert peer.update() == pytest.approx(metrics.gradient_norm, rel=0.03)
    changes = [float((new - old).abs().max()) for new, old in zip(peer.masters, before, strict=True)]
    assert max(changes) == pytest.approx(OPTIMISER.learning_rate, rel=0.1)
    assert all(each.grad is None for each in peer.masters)
