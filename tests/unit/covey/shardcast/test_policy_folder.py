"""Weights that result from deltas, and damage in any file of a policy."""

import json
import os
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.errors import ProtocolError
from covey.protocol.ids import ZERO_HASH
from covey.protocol.policy_record import RECORD_FILE, WEIGHTS_FILE
from covey.shardcast import policy_folder
from covey.shardcast.delta.image_codec import encode_image, list_blocks
from covey.shardcast.policy_export import build_record
from covey.shardcast.policy_folder import (
    compute_offsets,
    find_damage,
    find_wrong_tensor,
    map_weights,
    read_step,
    write_child,
    write_fully,
)
from tests.fakes.offered_policies import write_export
from tests.fakes.served_policies import flip

pytestmark = pytest.mark.unit


def make_tensors(seed, *, changed=1.0):
    """Return bfloat16 bits of two small tensors and one of 3 blocks. Most bits are the same for every seed."""
    still, moving = np.random.default_rng(0), np.random.default_rng(seed)
    tensors = {}
    for name, size in {"a.norm": 100, "b.weight": 9_000_001, "c.bias": 3}.items():
        values = still.integers(0, 1 << 16, size, np.uint16)
        places = moving.integers(0, size, max(1, int(changed * size / 100)))
        values[places] += 1
        tensors[name] = values
    return tensors


def finish(folder, *, step=1, parent=ZERO_HASH):
    """Return the record of an export, and write it into the folder as a download does."""
    record = build_record(folder, pool=1, step=step, parent=parent)
    (folder / RECORD_FILE).write_bytes(record.to_bytes())
    return record


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """Return the folders and records of three steps, and the deltas between them."""
    root, folders, records, deltas = tmp_path_factory.mktemp("chain"), [], [], []
    for step in range(3):
        folders.append(write_export(root / f"{step}", make_tensors(step)))
        records.append(finish(folders[-1], step=step))
    for step in range(1, 3):
        deltas.append(root / f"{step}.delta")
        images = [map_weights(folders[each] / WEIGHTS_FILE, records[each].tensors) for each in (step - 1, step)]
        with deltas[-1].open("wb") as file:
            encode_image(*images, blocks=list_blocks(records[step]), file=file)
    return folders, records, deltas


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("base", "target"), [(0, 1), (1, 2), (0, 2)])
def test_write_child__equals_the_childs_export(chain, tmp_path, base, target, threads):
    folders, records, deltas = chain
    image = map_weights(folders[base] / WEIGHTS_FILE, records[base].tensors)
    path = tmp_path / "child"
    write_child(image, deltas[base:target], path, record=records[target], threads=threads)
    assert path.read_bytes() == (folders[target] / WEIGHTS_FILE).read_bytes()


def test_write_child__a_delta_that_is_damaged_is_refused_or_leads_elsewhere__never_ends_the_process(chain, tmp_path):
    folders, records, deltas = chain
    image, path = map_weights(folders[0] / WEIGHTS_FILE, records[0].tensors), tmp_path / "delta"
    right, outcomes = (folders[1] / WEIGHTS_FILE).read_bytes(), set()
    for position in [*range(0, 24), *range(24, deltas[0].stat().st_size, 17_001)]:
        shutil.copyfile(deltas[0], path)
        flip(path, position)
        try:
            write_child(image, [path], tmp_path / "child", record=records[1], threads=2)
        except ProtocolError as error:
            outcomes.add(error.code)
            continue
        outcomes.add("other")
        assert (tmp_path / "child").read_bytes() != right
        child = map_weights(tmp_path / "child", records[1].tensors)
        assert find_wrong_tensor(records[1].tensors, child, record=records[1], threads=1) is not None
    assert outcomes == {"bad_delta", "other"}


@pytest.fixture
def policy(tmp_path):
    """Return the folder and the hash of a small policy."""
    tensors = {"a": np.arange(50, dtype=np.uint16), "b": np.arange(7, dtype=np.uint16)}
    folder = write_export(tmp_path / "policy", tensors)
    (folder / "vocab.txt").write_bytes(b"")
    return folder, finish(folder).compute_hash()


def test_find_damage__a_sound_policy(policy):
    assert find_damage(*policy, threads=2) == ""


def test_find_damage__every_byte_of_the_weights_and_their_header(policy):
    folder, record = policy
    path = folder / WEIGHTS_FILE
    for position in [*range(0, 300, 7), 4095, *range(4096, path.stat().st_size)]:
        flip(path, position)
        damage = find_damage(folder, record, threads=1)
        assert ("tensor " if position >= 4096 else "do not match its record") in damage, position
        flip(path, position)
    assert find_damage(folder, record, threads=1) == ""


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        (lambda folder: flip(folder / "config.json"), "config.json does not match the digest"),
        (lambda folder: (folder / "vocab.txt").write_bytes(b"x"), "vocab.txt does not match the digest"),
        (lambda folder: (folder / "config.json").unlink(), "cannot be read"),
        (lambda folder: (folder / WEIGHTS_FILE).unlink(), "cannot be read"),
        (lambda folder: (folder / WEIGHTS_FILE).write_bytes(b""), "cannot be read"),
        (lambda folder: os.truncate(folder / WEIGHTS_FILE, 4096 + 115), "do not match its record"),
        (lambda folder: (folder / RECORD_FILE).unlink(), "cannot be read"),
        (lambda folder: (folder / RECORD_FILE).write_bytes(b""), "record is invalid"),
        (lambda folder: (folder / RECORD_FILE).write_bytes(b"\xff" * 9), "record is invalid"),
    ],
)
def test_find_damage__each_file(policy, harm, text):
    folder, record = policy
    harm(folder)
    assert text in find_damage(folder, record, threads=1)


def test_find_damage__record_of_another_policy(policy):
    folder, record = policy
    data = json.loads((folder / RECORD_FILE).read_bytes())
    (folder / RECORD_FILE).write_text(json.dumps(data | {"step": 2}))
    assert find_damage(folder, record, threads=1) == f"the record does not have the hash {record}"


def test_find_wrong_tensor__only_among_those_asked_for(policy):
    folder, _ = policy
    record = build_record(folder, pool=1, step=1, parent=ZERO_HASH)
    image = np.array(map_weights(folder / WEIGHTS_FILE, record.tensors))
    assert compute_offsets(record.tensors) == [0, 100]
    image[100] ^= 1
    first, second = record.tensors
    assert find_wrong_tensor([first], image, record=record, threads=2) is None
    assert find_wrong_tensor([first, second], image, record=record, threads=2) is second
    assert find_wrong_tensor([], image, record=record, threads=2) is None


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[]", b'{"step": "x"}', b'{"step": null}'])
def test_read_step(policy, content):
    folder, _ = policy
    assert read_step(folder) == 1
    if content is None:
        (folder / RECORD_FILE).unlink()
    else:
        (folder / RECORD_FILE).write_bytes(content)
    with pytest.raises(ProtocolError) as caught:
        read_step(folder)
    assert caught.value.code == "damaged_policy"


@settings(max_examples=30)
@given(data=st.binary(max_size=100), step=st.integers(1, 40), offset=st.integers(0, 9))
def test_write_fully__whatever_the_system_takes_at_once(data, step, offset):
    disk = bytearray(200)

    def pwrite(file, part, position):
        assert file == 7
        disk[position : position + min(step, len(part))] = part[:step]
        return min(step, len(part))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(policy_folder.os, "pwrite", pwrite)
        write_fully(7, memoryview(data), offset)
    assert disk[offset : offset + len(data)] == data
    assert sum(disk[offset + len(data) :]) == 0
