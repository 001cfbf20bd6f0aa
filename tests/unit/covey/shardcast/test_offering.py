"""Offers of a trainer, and how a repeated offer repairs damaged files at the origin."""

import shutil

import numpy as np
import pytest

from covey.protocol.ids import ZERO_HASH
from covey.protocol.policy_record import WEIGHTS_FILE
from covey.protocol.transport import DELTA, WEIGHTS, TransportManifest
from covey.shardcast import policy_export
from covey.shardcast.export_preview import PreviewFolder
from covey.shardcast.offering import Export
from covey.shardcast.piece_files import PieceChecks
from tests.fakes.offered_policies import DOMAIN, TRAINER, build_offering, read_policy, write_export
from tests.fakes.policy_relays import OfferedPolicies
from tests.fakes.served_policies import flip

pytestmark = pytest.mark.unit


@pytest.fixture
def policies(tmp_path):
    return OfferedPolicies(tmp_path / "trainer", sizes={"a": 20_000, "b": 10}, anchor_every=3)


def list_ways(policies):
    """Return, for each step, the steps of the bases of its ways. -1 means an anchor, and None a base that is not in the
    head.
    """
    head = policies.head()
    steps = {each.record: each.step for each in head.policies} | {ZERO_HASH: -1}
    return {each.step: [steps.get(way.base) for way in each.ways] for each in head.policies}


def offer_again(policies, step, *, jump=False):
    policies.offering.offer(policies.exports[step], policies.exports[step - 1].folder if step else None)
    if jump:
        policies.offering.add_jump(policies.exports[step])


def list_files(root):
    """Return content and inode of each file. Stamps of offered objects are left out, because offers may add to them."""
    files = (path for path in root.rglob("*") if path.is_file() and path.name != ".offered")
    return {path: (path.read_bytes(), path.stat().st_ino) for path in files}


def find_object(policies, step, name):
    (served,) = (each for each in policies.head().policies if each.step == step)
    folders = (policies.store.find_objects(way.manifest) for way in served.ways)
    return next(folder / name for folder in folders if (folder / name).exists())


def require_readable(policies, tmp_path):
    """Compare every policy that the origin offers with the trainer's policy."""
    for step in range(len(policies.exports)):
        folder = read_policy(policies.store, 1, policies.hash_of(step), tmp_path / f"read-{step}")
        policies.require_same(folder, step)
        shutil.rmtree(folder)


def test_first_is_an_anchor__then_deltas__and_an_anchor_after_a_number_of_steps(policies, tmp_path):
    for _ in range(8):
        policies.offer()
    expected = {0: [-1], 1: [0], 2: [1], 3: [2, -1], 4: [3], 5: [4], 6: [5, -1], 7: [6]}
    assert list_ways(policies) == dict(sorted(expected.items(), reverse=True))
    require_readable(policies, tmp_path)


def test_open_preview__policies_that_will_be_anchors_only__until_they_are_offered(policies):
    shown = []
    for _ in range(5):
        policies.offer(
            is_previewed=True, before_offer=lambda: shown.append(PreviewFolder(policies.store.root).find(1) is not None)
        )
        assert PreviewFolder(policies.store.root).find(1) is None
    assert shown == [True, False, False, True, False]


def test_offer__next_export_has_begun__its_preview_stays(policies, tmp_path):
    other = tmp_path / "next"
    other.write_bytes(b"weights")
    policies.offer(before_offer=lambda: policies.offering.open_preview(3, other).close())
    assert PreviewFolder(policies.store.root).find(1) == b""


def test_jump__from_the_last_anchor__once__and_not_at_the_anchor_or_right_after_it(policies, tmp_path):
    for step in range(6):
        policies.offer(jump=True)
        policies.offering.add_jump(policies.exports[step])
    assert list_ways(policies) == {5: [4, 3], 4: [3], 3: [2, -1], 2: [1, 0], 1: [0], 0: [-1]}
    require_readable(policies, tmp_path)


def test_all_manifests__are_signed_and_lead_to_their_record(policies):
    records = {}
    for _ in range(5):
        record = policies.offer(jump=True)
        records[record.compute_hash()] = record
    count = 0
    for each in policies.head().policies:
        for way in each.ways:
            manifest = TransportManifest.from_bytes(policies.store.find_manifest(way.manifest), way.manifest)
            manifest.require_signer(DOMAIN, TRAINER.address)
            manifest.require_reaches(records[each.record], records.get(way.base))
            assert (manifest.record, manifest.base, manifest.size) == (each.record, way.base, way.size)
            count += 1
    assert count == 7


def test_repeated_offer__changes_nothing(policies):
    for _ in range(5):
        policies.offer(jump=True)
    before = list_files(policies.store.root)
    for step in (4, 3, 4, 0):
        offer_again(policies, step, jump=True)
    after = list_files(policies.store.root)
    assert {path: data for path, (data, _) in after.items()} == {path: data for path, (data, _) in before.items()}


def test_delta_that_is_no_smaller__is_left_out_for_an_anchor(policies):
    policies.offer()
    noise = np.random.default_rng(9).integers(0, 1 << 16, 20_000, np.uint16)
    folder = write_export(policies.root / "noise", {"a": noise, "b": noise[:10]})
    record = policies.offering.describe(folder, 1, policies.hash_of(0))
    policies.offering.offer(Export(folder, record), policies.exports[0].folder)
    assert list_ways(policies) == {1: [-1], 0: [-1]}


def test_other_layout_or_unknown_base__is_an_anchor(policies):
    policies.offer()
    folder = write_export(policies.root / "other", {"a": np.zeros(5, np.uint16)})
    record = policies.offering.describe(folder, 1, policies.hash_of(0))
    policies.offering.offer(Export(folder, record), policies.exports[0].folder)
    later = policies.offering.describe(folder, 2, "0x" + "12" * 32)
    policies.offering.offer(Export(folder, later), folder)
    policies.offering.add_jump(Export(folder, later))
    assert list_ways(policies) == {2: [-1], 1: [-1], 0: [-1]}


def test_step_with_another_record__replaces_the_first(policies):
    policies.offer(), policies.offer()
    folder = write_export(policies.root / "again", {"a": np.ones(20_000, np.uint16), "b": np.ones(10, np.uint16)})
    record = policies.offering.describe(folder, 1, policies.hash_of(0))
    policies.offering.offer(Export(folder, record), policies.exports[0].folder)
    assert policies.offering.find_record_hash(1) == record.compute_hash()
    assert [each.step for each in policies.head().policies] == [1, 0]
    assert policies.offering.find_record_hash(7) is None


@pytest.mark.parametrize("damage", ["missing", "garbage", "flipped"])
def test_damaged_head__is_put_together_from_what_is_there(policies, tmp_path, damage):
    for _ in range(3):
        policies.offer()
    path = policies.store.root / "heads" / "1.json"
    {"missing": path.unlink, "garbage": lambda: path.write_bytes(b"{"), "flipped": lambda: flip(path, 0)}[damage]()
    assert [policies.offering.find_record_hash(step) for step in range(3)] == list(map(policies.hash_of, range(3)))
    policies.offer()
    require_readable(policies, tmp_path)
    assert len(policies.head().policies) == 4


@pytest.mark.parametrize(("step", "name"), [(0, WEIGHTS), (0, "config.json"), (1, DELTA), (3, WEIGHTS)])
def test_damaged_object__is_replaced_by_the_next_offer(policies, tmp_path, step, name):
    for _ in range(4):
        policies.offer()
    path = find_object(policies, step, name)
    original = path.read_bytes()
    path.unlink()
    path.write_bytes(original)
    flip(path)
    offer_again(policies, step)
    assert find_object(policies, step, name).read_bytes()[-100:] == original[-100:]
    require_readable(policies, tmp_path)


@pytest.fixture
def hashed(monkeypatch):
    """Return a list that collects the folders of exports and the objects of manifests that are hashed."""
    names = []
    is_undamaged, check = policy_export.is_undamaged, PieceChecks.check

    def hash_export(folder, **options):
        names.append(folder.name)
        return is_undamaged(folder, **options)

    def hash_piece(checks, digest, location):
        names.append(location.path.name)
        return check(checks, digest, location)

    monkeypatch.setattr(policy_export, "is_undamaged", hash_export)
    monkeypatch.setattr(PieceChecks, "check", hash_piece)
    return names


def test_exports_of_this_process__are_not_hashed_again__nor_are_their_anchors(policies, hashed):
    for _ in range(6):
        policies.offer(jump=True, is_recorded=True)
    assert hashed == []
    assert list_ways(policies)[5] == [4, 3]


def test_exports_of_an_earlier_process__are_hashed_once__and_so_are_their_anchors(tmp_path, hashed):
    policies = OfferedPolicies(tmp_path / "trainer", sizes={"a": 20_000, "b": 10})
    policies.offer(is_recorded=True), policies.offer(is_recorded=True)
    policies.offering = build_offering(policies.root / "origin", pool=1)
    for _ in range(3):
        policies.offer(jump=True, is_recorded=True)
    assert hashed == ["export-1", "weights", "config.json"]
    assert list_ways(policies)[4] == [3, 0]


def test_export_that_changed_after_it_was_written__is_found_damaged(policies):
    policies.offer(is_recorded=True)
    flip(policies.exports[0].folder / WEIGHTS_FILE)
    policies.offer(is_recorded=True)
    assert list_ways(policies)[1] == [-1]


@pytest.mark.parametrize("name", [WEIGHTS, "config.json"])
def test_anchor_that_changed_after_it_was_linked__has_no_jump_and_another_anchor_follows(policies, tmp_path, name):
    """The anchor and the trainer's export are one file, so damage on disk affects both."""
    for _ in range(5):
        policies.offer(is_recorded=True)
    manifest = next(way.manifest for way in policies.head().policies[1].ways if way.base == ZERO_HASH)
    path = policies.store.find_objects(manifest) / name
    assert path.samefile(policies.exports[3].folder / (WEIGHTS_FILE if name == WEIGHTS else name))
    flip(path)
    policies.offering.add_jump(policies.exports[4])
    assert list_ways(policies)[4] == [3]
    policies.offer(is_recorded=True)
    assert list_ways(policies)[5] == [4, -1], "its turn would be step 6"
    policies.require_same(read_policy(policies.store, 1, policies.hash_of(5), tmp_path / "read"), 5)
    policies.offer(is_recorded=True, jump=True)
    assert list_ways(policies)[6] == [5], "the sound anchor counts from now on"


def test_damaged_record__is_replaced_by_the_next_offer(policies):
    policies.offer()
    path = policies.store.root / "records" / f"{policies.hash_of(0)}.json"
    flip(path, 5)
    offer_again(policies, 0)
    assert policies.store.find_record(policies.hash_of(0), verify=True) == policies.exports[0].record.to_bytes()


def test_old_policies__are_removed_before_the_next_one_is_added(tmp_path):
    policies = OfferedPolicies(tmp_path / "trainer", sizes={"a": 20_000}, anchor_every=3, keep=2)
    for _ in range(8):
        policies.offer()
    assert sorted(list_ways(policies)) == [3, 4, 5, 6, 7] or sorted(list_ways(policies))[-3:] == [5, 6, 7]
    assert not list(policies.store.root.glob(".delta-*"))
    read_policy(policies.store, 1, policies.hash_of(7), tmp_path / "read")


def test_damaged_head__of_another_pool_s_origin__has_only_this_pool(policies, tmp_path):
    policies.offer()
    other = build_offering(policies.root / "origin", pool=2)
    assert [policy.step for policy in policies.store.rebuild_head(1).policies] == [0]
    assert other.find_record_hash(0) is None


def test_scratch__of_a_killed_process__is_removed_at_the_next_start(policies):
    left = policies.store.root / ".delta-x"
    left.mkdir()
    (left / "delta").write_bytes(b"1" * 1000)
    build_offering(policies.root / "origin", pool=1)
    assert not left.exists()
