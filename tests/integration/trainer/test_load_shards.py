"""Two ranks load a model of 230 MB: their shards are its weights bit for bit, and no rank ever holds all of them."""

import json
import multiprocessing
from pathlib import Path

import pytest

from tests.fakes.loading_rank import RANKS, compute_whole_digest, main, write_model

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_load_shards__model_in_several_files__equals_the_whole_and_takes_little_more_than_the_shards(
    tmp_path: Path,
) -> None:
    source = tmp_path / "model"
    size = write_model(source)
    assert size > 200 << 20
    assert len(list(source.glob("*.safetensors"))) > 2
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["covey.local.preload"])
    children = [context.Process(target=main, args=(rank, tmp_path, source)) for rank in range(RANKS)]
    try:
        for child in children:
            child.start()
        for child in children:
            child.join(120)
            assert child.exitcode == 0
    finally:
        for child in children:
            child.kill()
            child.join()
    expected = compute_whole_digest(source)
    for rank in range(RANKS):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["digest"] == expected
        assert size / RANKS < found["peak"] < 0.75 * size
