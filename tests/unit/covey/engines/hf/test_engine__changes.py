"""A policy with a record replaces only the tensors that differ from the loaded policy."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from covey.engines.base import GenerationRequest
from covey.engines.hf import engine as hf_engine
from covey.engines.hf.engine import HuggingFaceEngine
from covey.errors import ProtocolError
from covey.model import policy_files, weight_files
from covey.model.tiny import tiny_folder
from covey.protocol.pieces import compute_digest
from covey.protocol.policy_record import RECORD_FILE, WEIGHTS_FILE

pytestmark = pytest.mark.unit


def write_policy(folder: Path, *changed: str, with_record: bool = True) -> Path:
    """Write the shipped policy with some tensors doubled, and a record of what the test needs."""
    shutil.copytree(tiny_folder(), folder)
    tensors = load_file(folder / WEIGHTS_FILE)
    tensors |= {name: tensors[name] * 2 for name in changed}
    save_file(tensors, folder / WEIGHTS_FILE, {"format": "pt"})
    if with_record:
        rows = [
            {"name": name, "digest": compute_digest(tensor.contiguous().view(torch.uint8).numpy().tobytes())}
            for name, tensor in tensors.items()
        ]
        (folder / RECORD_FILE).write_text(json.dumps({"tensors": rows}))
    return folder


def list_names() -> list[str]:
    return sorted(load_file(tiny_folder() / WEIGHTS_FILE))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[str] | None]:
    """Record the names that the engine loads."""
    found: list[frozenset[str] | None] = []
    stage = weight_files.stage_weights

    def record(weights: object, path: Path, *, names: frozenset[str] | None = None) -> weight_files.StagedWeights:
        found.append(names)
        return stage(weights, path, names=names)  # type: ignore[arg-type]

    monkeypatch.setattr(hf_engine, "stage_weights", record)
    return found


def test_load_policy__two_policies_with_records__loads_what_differs_and_agrees_with_a_fresh_engine(
    tmp_path: Path, loads: list[frozenset[str] | None], short_requests: list[GenerationRequest]
) -> None:
    first, second, third = list_names()[0], list_names()[3], list_names()[5]
    engine = HuggingFaceEngine()
    for step, changed in enumerate([(first,), (first, second), (third,)]):
        engine.load_policy(write_policy(tmp_path / str(step), *changed), step)
    assert loads == [frozenset({second}), frozenset({first, second, third})]
    fresh = HuggingFaceEngine()
    fresh.load_policy(tmp_path / "2", 2)
    pairs = zip(engine.generate(short_requests[:4], temperature=1.0),
                fresh.generate(short_requests[:4], temperature=1.0), strict=True)  # fmt: skip
    assert all((a.tokens, a.logprobs) == (b.tokens, b.logprobs) for a, b in pairs)


@pytest.mark.parametrize("records", [(False, True), (True, False)])
def test_load_policy__one_policy_without_a_record__loads_everything(
    tmp_path: Path, loads: list[frozenset[str] | None], records: tuple[bool, bool]
) -> None:
    engine = HuggingFaceEngine()
    for step, with_record in enumerate(records):
        engine.load_policy(write_policy(tmp_path / str(step), list_names()[step], with_record=with_record), step)
    assert loads == [None]


def test_load_policy__refused_policy__leaves_what_is_known_of_the_loaded_one(
    tmp_path: Path, loads: list[frozenset[str] | None]
) -> None:
    names, engine = list_names(), HuggingFaceEngine()
    engine.load_policy(write_policy(tmp_path / "0"), 0)
    wrong = write_policy(tmp_path / "1", names[0])
    tensors = load_file(wrong / WEIGHTS_FILE)
    save_file(tensors | {names[0]: torch.full_like(tensors[names[0]], torch.nan)}, wrong / WEIGHTS_FILE)
    with pytest.raises(ProtocolError, match="contains NaN or Inf"):
        engine.load_policy(wrong, 1)
    engine.load_policy(write_policy(tmp_path / "2", names[1]), 2)
    assert (engine.policy_version, loads[-1]) == (2, frozenset({names[1]}))


def test_load_pause__before_and_after_a_policy(tmp_path: Path) -> None:
    engine = HuggingFaceEngine()
    assert engine.load_pause == 0
    engine.load_policy(tiny_folder(), 0)
    assert engine.load_pause > 0


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ({}, {"a": "1"}, None),
        ({"a": "1"}, {}, None),
        ({"a": "1"}, {"a": "1", "b": "2"}, None),
        ({"a": "1", "b": "2"}, {"a": "1", "b": "3"}, frozenset("b")),
        ({"a": "1"}, {"a": "1"}, frozenset()),
    ],
)
def test_find_changed__by_hand(before: dict[str, str], after: dict[str, str], changed: frozenset[str] | None) -> None:
    assert policy_files.find_changed(before, after) == changed


@pytest.mark.parametrize("text", ["", "{", "[]", '{"tensors": [{}]}', '{"tensors": 1}'])
def test_read_digests__unreadable_record__is_as_none(tmp_path: Path, text: str) -> None:
    assert policy_files.read_digests(tmp_path) == {}
    (tmp_path / RECORD_FILE).write_text(text)
    assert policy_files.read_digests(tmp_path) == {}
