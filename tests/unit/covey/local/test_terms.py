"""The first model of a pool's folder, as its trainer's settings name it."""

from pathlib import Path

import pytest

from covey.local import terms

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("is_relative", [True, False])
def test_find_model__folder_of_a_pool__names_the_trainer_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_relative: bool
) -> None:
    (tmp_path / "mine").mkdir()
    named = "mine" if is_relative else "a/model"
    settings = {"initial_policy": named}
    monkeypatch.setattr(
        terms.TrainerConfig, "load", lambda file, environment: terms.TrainerConfig.model_construct(**settings)
    )
    assert terms.find_model(tmp_path) is None
    (tmp_path / "trainer.toml").write_text("")
    assert terms.find_model(tmp_path) == (tmp_path / "mine" if is_relative else "a/model")
