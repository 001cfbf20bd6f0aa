"""Keys of objects: the keys that are built can be parsed, and no other text can."""

import pytest

from covey.protocol import object_keys
from covey.protocol.object_keys import PublicObjectKey, parse_public_key

pytestmark = pytest.mark.unit
HASH = "0x" + "ab" * 32


def test_keys__by_hand() -> None:
    assert object_keys.build_upload_key(7, 1, 2, HASH) == f"uploads/7/1-2/{HASH}.parquet"
    assert object_keys.build_submission_key(7, 1, 2, HASH) == f"submissions/7/1-2/{HASH}.parquet"
    assert object_keys.build_evidence_key(7, HASH) == f"evidence/7/{HASH}.json"
    assert object_keys.build_epoch_key(7, HASH) == f"epochs/7/{HASH}.json"
    assert object_keys.get_content_hash(f"uploads/7/1-2/{HASH}.parquet") == HASH


def test_parse_public_key__public_key__returns_its_parts() -> None:
    submission = parse_public_key(object_keys.build_submission_key(7, 1, 2, HASH))
    assert submission == PublicObjectKey(kind="submissions", pool="7", hash=HASH, task=1, lease=2)
    assert parse_public_key(object_keys.build_epoch_key(7, HASH)) == PublicObjectKey(
        kind="epochs", pool="7", hash=HASH, task=0, lease=0
    )
    assert parse_public_key(object_keys.build_evidence_key(7, HASH)) == PublicObjectKey(
        kind="evidence", pool="7", hash=HASH, task=0, lease=0
    )


@pytest.mark.parametrize(
    "key",
    [
        f"uploads/7/1-2/{HASH}.parquet",
        f"submissions/7/1-2/{HASH}.json",
        f"submissions/7/1-{'9' * 19}/{HASH}.parquet",
        f"evidence/7/{HASH.upper()}.json",
        f"evidence/../{HASH}.json",
        f"epochs/7/{HASH}.json/x",
        f"epochs/7/{HASH}.json\n",
        "",
        "evidence",
    ],
)
def test_parse_public_key__anything_else__is_none(key: str) -> None:
    assert parse_public_key(key) is None
