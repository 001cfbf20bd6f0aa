import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from covey.environments.registry import DEMO, load
from covey.errors import OperatorError, ProtocolError
from covey.model.tiny import tiny_folder
from tests.fakes.tools import make_model_params
from trainer import requirements
from trainer.config import TrainerConfig
from trainer.requirements import require_trainable

pytestmark = pytest.mark.unit
PARAMS = make_model_params()
ENVIRONMENT = load(DEMO)


def make_config(**changes: object) -> TrainerConfig:
    places = {"home": "h", "pool": 1, "deployment": "d.json", "key_file": "k", "origin_root": "o"}
    return TrainerConfig.model_validate({**places, "eval": {"prompts": 4}, **changes})


def make_environment(*, held_out: int = 4, requires_isolation: bool = False) -> SimpleNamespace:
    return SimpleNamespace(
        held_out=lambda n: ["prompt"] * min(n, held_out),
        requires_isolation=requires_isolation,
        grading_python=ENVIRONMENT.grading_python,
    )


def check(config: TrainerConfig, *, environment: object = ENVIRONMENT, source: str | Path | None = None) -> None:
    require_trainable(config, PARAMS, environment, source=source)


def test_require_trainable__pool_of_the_demo__passes():
    check(make_config(), source=tiny_folder())


def test_require_trainable__rows_too_short__is_refused():
    with pytest.raises(OperatorError, match=f"short_rows: model.seq_len is {PARAMS.model.longest - 1}, but"):
        check(make_config(model={"seq_len": PARAMS.model.longest - 1}))


def test_require_trainable__nothing_held_out__is_refused_unless_nothing_is_evaluated():
    with pytest.raises(OperatorError, match=r"no_held_out: .*eval.every = 0"):
        check(make_config(), environment=make_environment(held_out=0))
    check(make_config(eval={"every": 0}), environment=make_environment(held_out=0))
    check(make_config(eval={"prompts": 256}), environment=make_environment(held_out=2))


def test_require_trainable__device_that_torch_does_not_find__is_refused():
    with pytest.raises(OperatorError, match="bad_device: "):
        check(make_config(device="cuda:77"))


@pytest.mark.parametrize(
    ("name", "value", "extra"),
    [("lora.rank", 4, "lora"), ("log.tensorboard", True, "tensorboard"), ("log.sinks", ("wandb",), "wandb"),
     ("log.sinks", ("mlflow",), "mlflow"), ("log.sinks", ("trackio",), "trackio")],
)  # fmt: skip
def test_require_trainable__package_is_not_installed__is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, extra: str
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    section, setting = name.split(".")
    with pytest.raises(OperatorError, match=rf"missing_extra: the setting {name} requires .*'covey\[{extra}\]'"):
        check(make_config(**{section: {setting: value}}))


def test_require_trainable__programs_on_a_machine_without_isolation__is_refused(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise OperatorError("unisolated_programs", "no isolation", fix="Install it")

    monkeypatch.setattr(requirements, "GradingPool", refuse)
    with pytest.raises(OperatorError, match="unisolated_programs"):
        check(make_config(), environment=make_environment(requires_isolation=True))
    check(make_config(), environment=make_environment())


@pytest.mark.parametrize("content", ["empty", "adapter", "no tokenizer"])
def test_require_trainable__folder_without_a_usable_model__is_refused(tmp_path: Path, content: str):
    if content == "adapter":
        (tmp_path / "adapter_config.json").write_text("{}")
    if content == "no tokenizer":
        (tmp_path / "config.json").write_bytes((tiny_folder() / "config.json").read_bytes())
    with pytest.raises(OperatorError, match="model_unavailable: "):
        check(make_config(), source=tmp_path)


def test_require_trainable__model_with_other_end_tokens_than_the_pools__is_refused():
    params = make_model_params(model={"end_tokens": (7,)})
    with pytest.raises(ProtocolError, match=r"policy_mismatch: .*end tokens"):
        require_trainable(make_config(), params, ENVIRONMENT, source=tiny_folder())
