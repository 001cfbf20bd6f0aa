"""Options and policies of the sections on vLLM."""

from dataclasses import replace

import pytest

from benchmarks.gpu.section_run import SectionRun
from benchmarks.gpu.vllm_policies import build_options, read_card_gb, save_peaked
from covey.model.policy_files import require_policy

pytestmark = pytest.mark.unit


def test_build_options__two_engines_on_a_card__have_a_given_cache_and_graphs(run: SectionRun) -> None:
    options = build_options(replace(run, is_tiny=False))
    assert options.kv_cache_memory_bytes == 10_200_547_328
    assert options.resolve("cuda").enforce_eager is False
    assert build_options(run, is_eager=True).resolve("cuda").enforce_eager is True


def test_save_peaked__a_policy__is_whole_and_removed_afterwards(run: SectionRun) -> None:
    with save_peaked(run) as folder:
        require_policy(folder)
    assert not folder.exists()


def test_read_card_gb__on_a_gpu__is_what_is_not_free(run: SectionRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (60_000_000_000, 80_000_000_000))
    assert read_card_gb(run) is None
    assert read_card_gb(replace(run, device="cuda")) == 20
