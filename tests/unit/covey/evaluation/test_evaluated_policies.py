"""Models, policies and runs, found by their folders."""

import shutil
from pathlib import Path

import pytest

from covey.errors import OperatorError
from covey.evaluation.evaluated_policies import (
    EvaluatedPolicy,
    compute_policy_digest,
    find_policies,
    find_policy,
    prepare_folder,
)
from covey.model.policy_files import get_weights, load_model, load_tokenizer
from covey.model.tiny import tiny_folder
from covey.model.weight_files import read_weights

pytestmark = pytest.mark.unit


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of a run with policies of steps 2 and 10, and the draft of another one."""
    for step in ("2", "10", ".11"):
        shutil.copytree(tiny_folder(), tmp_path / "myrun" / "exports" / step)
    return tmp_path / "myrun"


def test_find_policy__model_policy_or_run__is_the_folder_of_a_policy(run: Path) -> None:
    assert find_policy(str(tiny_folder()), None) == EvaluatedPolicy(label="tiny", source=str(tiny_folder()))
    newest = find_policy(str(run), None)
    assert (newest.label, Path(newest.source).name) == ("myrun step 10", "10")
    assert find_policy(str(run), 2).label == "myrun step 2"
    assert find_policy(str(run / "exports" / "2"), None).label == "myrun step 2"
    assert find_policy("owner/name", None).source == "owner/name"


def test_find_policy__the_folder_of_a_pool__has_its_trainers_policies(tmp_path: Path) -> None:
    shutil.copytree(tiny_folder(), tmp_path / "mypool" / "trainer" / "exports" / "3")
    assert find_policy(str(tmp_path / "mypool"), None).label == "mypool step 3"


def test_find_policy__what_is_not_there__is_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"no_export: step 3 of .* has the steps 2, 10"):
        find_policy(str(run), 3)
    with pytest.raises(OperatorError, match=r"no_model: .* neither a model"):
        find_policy(str(tmp_path), None)
    with pytest.raises(OperatorError, match=r"model_unavailable: the model folder .*/absent does not exist"):
        find_policy(str(tmp_path / "absent"), None)
    (tmp_path / "new" / "exports").mkdir(parents=True)
    with pytest.raises(OperatorError, match=r"no_export: a policy of .* has no policy yet"):
        find_policy(str(tmp_path / "new"), None)


def test_find_policies__equal_labels__become_paths(run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_folder(), tmp_path / "tiny")
    found = find_policies([str(tiny_folder()), str(tmp_path / "tiny"), str(run)], None)
    assert [policy.label for policy in found] == [str(tiny_folder()), str(tmp_path / "tiny"), "myrun step 10"]


def test_prepare_folder__a_policy__is_its_own_folder(tmp_path: Path) -> None:
    assert prepare_folder(find_policy(str(tiny_folder()), None), tmp_path) == tiny_folder()
    assert list(tmp_path.iterdir()) == []


def test_prepare_folder__weights_in_several_files__are_copied_bit_for_bit(tmp_path: Path) -> None:
    model, scratch = load_model(tiny_folder(), "bfloat16"), tmp_path / "scratch"
    scratch.mkdir()
    model.save_pretrained(tmp_path / "sharded", max_shard_size="200KB")
    load_tokenizer(tiny_folder()).save_pretrained(tmp_path / "sharded")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    assert prepare_folder(find_policy(str(tmp_path / "sharded"), None), scratch) == scratch
    before = dict(read_weights(get_weights(model), tiny_folder() / "model.safetensors"))
    after = dict(read_weights(get_weights(model), scratch / "model.safetensors"))
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)


def test_compute_policy_digest__changes_with_weights_and_not_with_records(run: Path) -> None:
    folder = run / "exports" / "2"
    digest = compute_policy_digest(folder)
    assert digest == compute_policy_digest(run / "exports" / "10")
    (folder / "record.json").write_text("{}")
    (folder / "README.md").write_text("x")
    assert compute_policy_digest(folder) == digest
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert compute_policy_digest(folder) != digest
