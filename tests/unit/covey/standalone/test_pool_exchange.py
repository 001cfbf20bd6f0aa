"""A run on one machine becomes a pool with the same model, questions, lengths, loss and seed."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey import cli
from covey.errors import OperatorError
from covey.model.tiny import tiny_folder
from covey.protocol.ids import Hash
from covey.protocol.params import PoolParams, TrainingParams
from covey.standalone import pool_exchange
from covey.standalone.config import TrainConfig
from covey.standalone.manifest import record_manifest
from covey.standalone.pool_exchange import draft_pool, follow_pool, load_run
from covey.standalone.preparation import prepare
from trainer.algorithm.loss_settings import LossSettings
from trainer.config import TrainerConfig

pytestmark = pytest.mark.unit
RUN = """
seed = 3
steps = 6
device = "cpu"
[data]
dataset = "rows.jsonl"
[sampling]
group_size = 4
groups_per_step = 8
max_completion_tokens = 40
[optim]
learning_rate = 2e-5
[eval]
every = 2
prompts = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [
        {"prompt": f"What is {n} + {n}?", "verification_info": {"ground_truth": str(2 * n)}, "task_type": "math"}
        for n in range(64)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path / "run.toml"


def test_draft_pool__run__has_its_parameters_and_the_data_set(file: Path, tmp_path: Path):
    config = TrainConfig.load(file, {}, {})
    draft = draft_pool(config, tmp_path / "scratch")
    assert draft.training == prepare(config.model_copy(update={"home": tmp_path / "run"})).params
    assert draft.data_set is not None
    assert (draft.data_set / "manifest.json").is_file()
    assert (draft.learning["optim"], draft.learning["seed"], draft.learning["steps"]) == ({"learning_rate": 2e-5}, 3, 6)
    assert not {"home", "pool", "key_file", "device"} & set(draft.learning)


def test_init_pool__from_a_run__writes_files_that_the_pools_roles_accept(file: Path, tmp_path: Path):
    folder = tmp_path / "pool"
    done = CliRunner().invoke(cli.app, ["init", "pool", str(folder), "--from", str(file)])
    assert done.exception is None, done.output
    params = PoolParams.model_validate(tomllib.loads((folder / "pool.toml").read_text())["params"])
    expected = prepare(TrainConfig.load(file, {"home": str(tmp_path / "run")}, {})).params
    assert {name: getattr(params, name) for name in TrainingParams.model_fields} == dict(expected)
    trainer = TrainerConfig.load(folder / "trainer.toml", {}, {})
    assert (trainer.optim.learning_rate, trainer.seed, trainer.eval.every) == (2e-5, 3, 2)
    assert [path.name for path in (folder / "datasets").iterdir()] == ["tasks"]


def test_draft_pool__value_that_overrides_a_preset__is_kept_if_it_is_a_default(file: Path, tmp_path: Path):
    changes = {"loss.preset": "intellect-2@1", "loss.beta": 0.0, "model.dtype": "float32", "model.path": None}
    config = TrainConfig.load(file, changes, {})
    learning = draft_pool(config, tmp_path / "scratch").learning
    assert LossSettings.model_validate(learning["loss"]) == config.loss
    assert config.loss.beta == 0.0
    assert "model" not in learning, "the pool's own parameters have the number format"


def test_load_run__folder_or_manifest__gives_the_pool_of_its_settings(file: Path, tmp_path: Path):
    home = tmp_path / "run"
    plan = prepare(TrainConfig.load(file, {"home": str(home)}, {}))
    record_manifest(home, plan.manifest, step=0, first_policy=Hash("0x" + "11" * 32))
    (tmp_path / "rows.jsonl").unlink()
    for number, path in enumerate((home, home / "manifest.json")):
        draft = draft_pool(load_run(path), tmp_path / str(number))
        assert draft.training == plan.params
        assert draft.learning["optim"]["learning_rate"] == 2e-5
        assert (draft.learning["seed"], draft.learning["steps"]) == (3, 6)
    (tmp_path / "followed.json").write_text(
        plan.manifest.model_copy(update={"from_pool": "http://a"}).model_dump_json()
    )
    with pytest.raises(OperatorError, match=r"bad_settings: the run .* has the questions of the pool at http://a"):
        load_run(tmp_path / "followed.json")


def test_init_pool__from_a_run_and_a_model__trains_that_model(file: Path, tmp_path: Path):
    arguments = ["init", "pool", str(tmp_path / "pool"), "--from", str(file), "--model", str(tiny_folder())]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exception is None, done.output
    trainer = TrainerConfig.load(tmp_path / "pool" / "trainer.toml", {}, {})
    assert trainer.model.path == str(tiny_folder())


def test_init_pool__from_a_run_and_a_data_set__is_refused(file: Path, tmp_path: Path):
    done = CliRunner().invoke(cli.app, ["init", "pool", str(tmp_path / "pool"), "--from", str(file), "--dataset", "x"])
    assert isinstance(done.exception, OperatorError)
    assert "--from cannot be combined with --dataset" in done.exception.message
    assert not (tmp_path / "pool").exists()


def test_follow_pool__own_questions__are_refused(file: Path):
    with pytest.raises(OperatorError, match="--from-pool cannot be combined"):
        follow_pool(TrainConfig.load(file, {}, {}), "http://127.0.0.1:1")


def test_follow_pool__step_and_a_model__are_refused():
    config = TrainConfig.load(None, {"model.path": "my-model"}, {})
    with pytest.raises(OperatorError, match=r"bad_settings: .* both policy 3 of the pool and model\.path, my-model"):
        follow_pool(config, "http://127.0.0.1:1", step=3)


@pytest.mark.parametrize("option", ["--from-step", "--rpc"])
def test_train__option_of_a_pool_without_a_pool__is_refused(option: str, tmp_path: Path):
    done = CliRunner().invoke(cli.app, ["train", "--out", str(tmp_path / "run"), option, "1", "--dry-run"])
    assert isinstance(done.exception, OperatorError)
    assert (done.exception.code, option in done.exception.message) == ("bad_settings", True)


def test_train__dry_run_from_a_pool__downloads_nothing_into_the_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    homes = list[Path]()

    def follow(config: TrainConfig, url: str, **_: object) -> None:
        homes.append(config.home)
        raise OperatorError("no_policy", f"{url} has no policy", fix="Wait")

    monkeypatch.setattr(pool_exchange, "follow_pool", follow)
    monkeypatch.setenv("COVEY_RPC_URL", "http://127.0.0.1:1")
    for options in (["--dry-run"], []):
        arguments = ["train", "--out", str(tmp_path / "run"), "--from-pool", "http://127.0.0.1:1", *options]
        done = CliRunner().invoke(cli.app, arguments)
        assert isinstance(done.exception, OperatorError), done.output
    assert homes[0] != tmp_path / "run" == homes[1]
