"""The two-sided objective against TRL 1.16's trainer: its own loss, on padded random batches."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from covey.model.files import load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import TWO_SIDED, build_learner, build_samples
from tests.fakes.trl_peer import CASES, LIMIT, SEEDS
from trainer.batch import build_batch

pytestmark = [pytest.mark.unit, pytest.mark.slow]

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("trl")
    folder = tmp_path_factory.mktemp("trl")
    command = [sys.executable, "-m", "tests.fakes.trl_peer", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES)
def test_update__random_batch__loss_and_gradient_are_those_of_trl(peer: Path, case: str, seed: int) -> None:
    learner = build_learner(load_model(tiny_folder(), "float32"), objective=replace(TWO_SIDED, kl=CASES[case][1]))
    normaliser = "tokens" if case == "kl" else case
    batch = build_batch(build_samples(seed=seed), normaliser=normaliser, constant=LIMIT, keep_all=True)  # type: ignore[arg-type]
    metrics = learner.update(batch)
    assert metrics.clip_ratio > 0.1
    assert metrics.loss == pytest.approx(json.loads((peer / "losses.json").read_text())[f"{case}-{seed}"], abs=1e-5)
    theirs = load_file(peer / f"{case}-{seed}.safetensors")
    ours = {name: each.grad for name, each in learner.model.named_parameters()}
    assert set(ours) == set(theirs)
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=0, atol=1e-5, msg=name)
