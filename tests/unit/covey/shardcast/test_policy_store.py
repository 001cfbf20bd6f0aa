"""A store that processes share. Two instances act as two processes, because flock locks belong to open files."""

import fcntl
import os
import shutil
import threading

import numpy as np
import pytest

from covey.errors import TransientError
from covey.protocol.ids import ZERO_HASH
from covey.protocol.policy_record import PIECES_FILE, RECORD_FILE, WEIGHTS_FILE
from covey.shardcast import policy_store
from covey.shardcast.policy_export import build_record
from covey.shardcast.policy_store import PolicyStore
from tests.fakes.offered_policies import write_export
from tests.fakes.served_policies import flip

pytestmark = pytest.mark.unit
HANG_S = 60.0
"""Deadline in seconds that keeps a test from hanging."""


@pytest.fixture
def root(tmp_path):
    return tmp_path / "policies"


@pytest.fixture
def store(root):
    return PolicyStore(root, keep=3, threads=1)


@pytest.fixture
def other(root):
    """Return the same store as another process sees it."""
    return PolicyStore(root, keep=3, threads=1)


def add(store, step, *, size=50):
    """Add a policy as a download does, and return its folder."""
    draft = store.root / ".part-new"
    write_export(draft, {"w": np.arange(step, step + size, dtype=np.uint16)})
    (draft / PIECES_FILE).unlink()
    record = build_record(draft, pool=1, step=step, parent=ZERO_HASH)
    (draft / RECORD_FILE).write_bytes(record.to_bytes())
    store.add(draft, record)
    return store.get_folder(step, record.compute_hash())


def list_steps(store):
    return [int(path.name.partition("-")[0]) for path in store.list_folders().values()]


def set_free(monkeypatch, root, capacity):
    """Limit the disk of the store to `capacity` bytes. Each policy takes the size of its weights."""

    def measure(_):
        used = sum(path.stat().st_size for path in root.glob(f"*/{WEIGHTS_FILE}"))
        return shutil._ntuple_diskusage(capacity, used, capacity - used)

    monkeypatch.setattr(policy_store.shutil, "disk_usage", measure)


def test_list_folders__oldest_step_first__and_nothing_but_policies(store):
    folders = [add(store, step) for step in (10, 9, 2)]
    for name in (".part-0x" + "ab" * 32, "7-0xab", "x-0x" + "ab" * 32, ".gone-1-0x" + "ab" * 32, "7"):
        (store.root / name).mkdir()
    assert list(store.list_folders().values()) == folders[::-1]
    assert [folder.name for folder in folders] == [
        f"{10}-{list(store.list_folders())[2]}",
        *[f.name for f in folders[1:]],
    ]


def test_add__replaces_a_folder_of_the_same_name(store):
    folder = add(store, 1)
    (folder / "junk").write_text("x")
    assert add(store, 1) == folder
    assert not (folder / "junk").exists()
    assert [path.name for path in store.root.iterdir()] == [folder.name]


def test_hold_if_sound__digests_are_compared_once_per_process(store, other):
    folder = add(store, 1)
    assert other.hold_if_sound(folder)
    flip(folder / WEIGHTS_FILE)
    assert other.hold_if_sound(folder)
    assert store.hold_if_sound(folder)  # This process has built the folder.
    third = PolicyStore(store.root, keep=3)
    assert not third.hold_if_sound(folder)
    assert not folder.exists()
    assert not other.hold_if_sound(folder)


def test_hold_if_sound__replaced_by_another_process_while_its_digests_were_compared__is_left(store, other, monkeypatch):
    folder = add(store, 1)
    flip(folder / WEIGHTS_FILE)
    find_damage = policy_store.find_damage

    def find_slowly(*arguments, **settings):
        found = find_damage(*arguments, **settings)
        add(store, 1)
        return found

    monkeypatch.setattr(policy_store, "find_damage", find_slowly)
    assert not other.hold_if_sound(folder)
    monkeypatch.undo()
    assert other.hold_if_sound(folder)


@pytest.mark.parametrize("name", [WEIGHTS_FILE, RECORD_FILE, "config.json"])
@pytest.mark.parametrize("is_missing", [False, True])
def test_hold_if_sound__a_damaged_folder_is_removed__also_if_it_is_held(store, other, name, is_missing):
    folder = add(store, 1)
    assert store.hold_if_sound(folder)
    (folder / name).unlink() if is_missing else flip(folder / name)
    assert not other.hold_if_sound(folder)
    assert list(store.root.iterdir()) == []
    store.release(folder)
    store.release(folder)


def test_hold_if_sound__two_processes_find_the_same_damage(store, other, monkeypatch):
    """The slower process must neither fail nor remove what the faster one has fetched again."""
    folder = add(store, 1)
    flip(folder / WEIGHTS_FILE)
    third, find_damage = PolicyStore(store.root, keep=3), policy_store.find_damage

    def find_slowly(*arguments, **settings):
        found = find_damage(*arguments, **settings)
        monkeypatch.setattr(policy_store, "find_damage", find_damage)
        assert not third.hold_if_sound(folder)
        return found

    monkeypatch.setattr(policy_store, "find_damage", find_slowly)
    assert not other.hold_if_sound(folder)
    assert not folder.exists()


def test_hold__prevents_removal_by_every_process_until_as_many_releases(store, other):
    folders = [add(store, step) for step in (1, 2, 3)]
    store.hold(folders[0])
    store.hold(folders[0])
    store.release(folders[0])
    for each in (other, store):
        each.make_room(0)
        assert list_steps(store) == [1, 3]
    store.release(folders[0])
    add(store, 4)
    other.make_room(0)
    assert list_steps(store) == [3, 4]


def test_hold__of_a_policy_that_is_being_removed__fails(store, monkeypatch):
    folder, results = add(store, 1), []
    has_opened, flock = threading.Event(), fcntl.flock
    file = os.open(folder / RECORD_FILE, os.O_RDONLY)
    fcntl.flock(file, fcntl.LOCK_EX)  # Another process is about to remove the policy.

    def lock(opened, operation):
        has_opened.set()
        flock(opened, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
    thread = threading.Thread(target=lambda: results.append(store.hold_if_sound(folder)))
    thread.start()
    assert has_opened.wait(HANG_S)
    folder.rename(store.root / ".gone-1")
    os.close(file)
    thread.join(HANG_S)
    assert results == [False]


def test_make_room__keeps_the_newest__one_less_than_keep(store):
    for step in (5, 1, 9, 3, 7):
        add(store, step)
    store.make_room(0)
    assert list_steps(store) == [7, 9]
    store.make_room(0)
    assert list_steps(store) == [7, 9]


def test_make_room__removes_more_if_the_disk_is_small__the_oldest_first(store, monkeypatch):
    folder = add(store, 1)
    size = (folder / WEIGHTS_FILE).stat().st_size
    add(store, 2)
    set_free(monkeypatch, store.root, 3 * size)
    store.make_room(size)
    assert list_steps(store) == [1, 2]
    store.make_room(size + 1)
    assert list_steps(store) == [2]
    store.make_room(3 * size)
    assert list_steps(store) == []


def test_make_room__disk_full__says_what_is_needed_and_what_is_free(store, monkeypatch):
    folder = add(store, 1)
    size = (folder / WEIGHTS_FILE).stat().st_size
    set_free(monkeypatch, store.root, 2 * size)
    store.hold(folder)
    with pytest.raises(TransientError, match=f"needs {2 * size} free bytes for a policy but has {size}") as caught:
        store.make_room(2 * size)
    assert caught.value.code == "disk_full"
    assert list_steps(store) == [1]
    store.release(folder)
    with pytest.raises(TransientError, match=f"needs {2 * size + 1} free bytes for a policy but has {2 * size}"):
        store.make_room(2 * size + 1)
    assert list_steps(store) == []


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_disk_with_room_for_one_more_than_are_kept__is_never_full(root, monkeypatch, keep):
    store = PolicyStore(root, keep=keep)
    size = (add(store, 0) / WEIGHTS_FILE).stat().st_size
    set_free(monkeypatch, root, (keep + 1) * size)
    held = store.get_folder(0, next(iter(store.list_folders())))
    store.hold(held)
    for step in range(1, 12):
        store.make_room(size)
        folder = add(store, step)
        store.hold(folder)
        store.release(held)
        held = folder
        assert list_steps(store) == list(range(max(0, step + 1 - max(keep, 2)), step + 1))[-max(keep, 2) :]


def test_drafts__of_other_policies_and_half_removed_folders__are_removed(store):
    mine = store.get_draft("0x" + "aa" * 32)
    for path in (mine, store.get_draft("0x" + "bb" * 32), store.root / ".gone-12"):
        path.mkdir()
        (path / "weights").write_bytes(b"x")
    folder = add(store, 1)
    store.remove_drafts(besides=mine)
    assert sorted(store.root.iterdir()) == sorted([mine, folder])


def test_lock__of_another_process__is_waited_for_and_then_had(store, other):
    events, has_tried, looks = [], threading.Event(), []

    def is_needed():
        looks.append(1)
        if len(looks) == 2:
            has_tried.set()
        return True

    def work():
        with other.lock(is_needed, stop=threading.Event()) as is_ours:
            events.append(is_ours)

    with store.lock(lambda: True, stop=threading.Event()) as is_ours:
        assert is_ours
        thread = threading.Thread(target=work)
        thread.start()
        assert has_tried.wait(HANG_S)
        assert events == []
    thread.join(HANG_S)
    assert events == [True]


def test_lock__no_longer_needed__is_not_waited_for(store, other):
    is_here = threading.Event()
    with store.lock(lambda: True, stop=threading.Event()):
        threading.Timer(0.1, is_here.set).start()
        with other.lock(lambda: not is_here.is_set(), stop=threading.Event()) as is_ours:
            assert is_here.is_set()
            assert not is_ours


def test_lock__needed_by_nobody_once_it_is_had__is_had_without_the_need(store):
    needs = iter([True, False])
    with store.lock(lambda: next(needs), stop=threading.Event()) as is_ours:
        assert not is_ours


def test_lock__stopped_or_held_for_too_long(store, other, monkeypatch):
    stop = threading.Event()
    stop.set()
    with store.lock(lambda: True, stop=threading.Event()):
        with pytest.raises(TransientError) as caught, other.lock(lambda: True, stop=stop):
            pass
        assert caught.value.code == "stopped"
        monkeypatch.setattr(policy_store, "LOCK_SECONDS", 0.15)
        text = r"has held .*\.lock for 0.15 s"
        with pytest.raises(TransientError, match=text) as caught, other.lock(lambda: True, stop=threading.Event()):
            pass
        assert caught.value.code == "store_busy"


def test_lock__is_free_again_after_an_error(store, other):
    with pytest.raises(RuntimeError), store.lock(lambda: True, stop=threading.Event()):
        raise RuntimeError
    with other.lock(lambda: True, stop=threading.Event()) as is_ours:
        assert is_ours


def test_make_room__policy_that_never_fits__costs_no_other(store, monkeypatch):
    """A trainer that publishes a huge record must not empty the stores of all workers."""
    for step in (1, 2):
        add(store, step)
    set_free(monkeypatch, store.root, 1000)
    with pytest.raises(TransientError, match=r"needs 2000000000 free bytes .* in old policies"):
        store.make_room(2_000_000_000)
    assert list_steps(store) == [1, 2]


def test_hold_if_sound__damage_found_by_several_threads__is_handled_once(root):
    folder = add(PolicyStore(root, keep=3, threads=1), 1)
    flip(folder / WEIGHTS_FILE)
    store, results = PolicyStore(root, keep=3, threads=1), []
    threads = [threading.Thread(target=lambda: results.append(store.hold_if_sound(folder))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert results == [False] * 8
    assert store.count_holds(folder) == 0
    assert not folder.exists()
