"""Two ranks that share batches teach what one teaches alone; a rank without samples takes part."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from covey.model.files import load_model
from covey.model.tiny import tiny_folder
from tests.fakes.ranks import OBJECTIVE, RANKS, SIZES, draw_head
from tests.fakes.samples import SHAPE, build_batch, build_learner, build_samples
from trainer.forward import compute_logprobs
from trainer.head import compute_head

pytestmark = [pytest.mark.unit, pytest.mark.slow]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.ranks", str(rank), str(folder)],
            cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        for child in children:
            _, errors = child.communicate(timeout=120)
            assert child.returncode == 0, errors[-2000:]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return folder


@pytest.mark.parametrize("size", SIZES)
def test_update__two_ranks__gradient_and_metrics_are_those_of_one(ranks: Path, size: int) -> None:
    alone = build_learner(load_model(tiny_folder(), "float32"), objective=OBJECTIVE)
    metrics = asdict(alone.update(build_batch(build_samples(size))))
    for rank in range(RANKS):
        assert json.loads((ranks / f"{rank}.json").read_text())[str(size)] == pytest.approx(metrics, rel=1e-5, abs=1e-7)
        tensors = load_file(ranks / f"{rank}.safetensors")
        for name, parameter in alone.model.named_parameters():
            torch.testing.assert_close(tensors[f"{size}/{name}.grad"], parameter.grad, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("size", SIZES)
def test_compute_logprobs__two_ranks__each_has_those_of_all_samples(ranks: Path, size: int) -> None:
    samples = build_samples(size)
    alone = compute_logprobs(load_model(tiny_folder(), "float32"), samples, SHAPE)
    for rank in range(RANKS):
        found = load_file(ranks / f"{rank}.safetensors")[f"{size}/logprobs"].tolist()
        assert found == pytest.approx([value for each in alone for value in each], abs=1e-5)


def test_update__two_ranks__gradients_and_masters_have_equal_bits(ranks: Path) -> None:
    first, second = (load_file(ranks / f"{rank}.safetensors") for rank in range(RANKS))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_compute_head__weight_in_shards__gradient_is_the_sum_over_ranks(ranks: Path) -> None:
    hidden, weight, targets = draw_head()
    weight.requires_grad_()
    logprobs, entropy = compute_head(hidden, weight, targets, dtype=torch.float32)
    (expected,) = torch.autograd.grad((logprobs + entropy).sum(), weight)
    torch.testing.assert_close(load_file(ranks / "0.safetensors")["head"], expected, rtol=1e-5, atol=1e-6)
