import hashlib
import hmac
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import OperatorError, ProtocolError
from covey.object_store import LinkSigner, ObjectStore

pytestmark = pytest.mark.unit

NOW = 1_700_000_000.0
SIGNER = LinkSigner(secret=b"secret", base_url="http://127.0.0.1:8000")
KEY = "submissions/1/7-9/0xab.parquet"
EVIL_KEYS = [
    "../x",
    "a/../../x",
    "..",
    ".",
    "a/./b",
    "a//b",
    "/etc/passwd",
    "",
    "a/",
    "a\\..\\b",
    "%2e%2e/x",
    "..%2fx",
    "%252e%252e/x",
    "‥/x",
    "．．/x",
    "..\u2215x",
    "a\x00b",
    "a\nb",
    "a\n",
    ".hidden",
    "a/.hidden",
    "é",
    "\ud800",
    "a b",
    "x" * 513,
    "C:\\x",
]


@pytest.fixture
def store(tmp_path):
    return ObjectStore.open(f"file://{tmp_path / 'store'}", SIGNER)


def refuse(call, *args, **kwargs):
    with pytest.raises(ProtocolError) as caught:
        call(*args, **kwargs)
    return caught.value.code


def read_link(link):
    return urlsplit(link).path.removeprefix("/v1/objects/"), dict(parse_qsl(urlsplit(link).query))


def test_put__then_get__same_bytes(store, tmp_path):
    store.put_named_by_content(KEY, b"content")
    assert store.get(KEY, max_bytes=7) == b"content"
    assert (tmp_path / "store" / KEY).read_bytes() == b"content"


def test_put__again__is_not_an_error(store, tmp_path):
    for _ in range(2):
        store.put_named_by_content(KEY, b"content")
        assert store.get(KEY, max_bytes=7) == b"content"
    assert [path.name for path in (tmp_path / "store" / KEY).parent.iterdir()] == ["0xab.parquet"]


def test_get__missing_or_oversized__refused(store):
    assert refuse(store.get, "a/b", max_bytes=9) == "missing"
    store.put_named_by_content("a/b", b"12345")
    assert refuse(store.get, "a/b", max_bytes=4) == "oversized"


@pytest.mark.parametrize("key", EVIL_KEYS)
def test_key__not_a_plain_name__refused_everywhere(store, tmp_path, key):
    """Upward, encoded and Unicode variants of a path (threats.md, row 22)."""
    (tmp_path / "x").write_bytes(b"outside")
    before = sorted(tmp_path.rglob("*"))
    assert refuse(store.put_named_by_content, key, b"evil") == "bad_key"
    assert refuse(store.get, key, max_bytes=99) == "bad_key"
    assert refuse(store.delete, key) == "bad_key"
    assert refuse(store.sign_link, "GET", key, now=NOW, seconds=9) == "bad_key"
    assert refuse(store.require_link, "GET", key, {}, now=NOW) == "bad_key"
    assert sorted(tmp_path.rglob("*")) == before


def test_key__of_a_folder__is_missing(store):
    store.put_named_by_content("a/b", b"1")
    assert refuse(store.get, "a", max_bytes=9) == "missing"


def test_delete__object__is_missing_and_may_be_put_again(store):
    store.put_named_by_content(KEY, b"first")
    store.delete(KEY)
    store.delete(KEY)
    assert refuse(store.get, KEY, max_bytes=9) == "missing"
    store.put_named_by_content(KEY, b"second")
    assert store.get(KEY, max_bytes=9) == b"second"


def test_link__by_hand__hmac_over_every_value(store):
    key, query = read_link(store.sign_link("PUT", KEY, now=NOW, seconds=60, size=12))
    text = f"covey-link-1\nPUT\n{KEY}\n1700000060\n12".encode()
    assert key == KEY
    assert query == {
        "method": "PUT",
        "expires": "1700000060",
        "size": "12",
        "signature": hmac.new(b"secret", text, hashlib.sha256).hexdigest(),
    }
    assert store.require_link("PUT", key, query, now=NOW) == 12


def test_link__expiry__is_valid_until_its_last_second(store):
    key, query = read_link(store.sign_link("GET", KEY, now=NOW, seconds=60))
    assert store.require_link("GET", key, query, now=NOW + 60) == 0
    assert refuse(store.require_link, "GET", key, query, now=NOW + 60.5) == "bad_link"


@pytest.mark.parametrize(
    ("method", "key", "changes"),
    [
        ("GET", KEY, {}),
        ("PUT", "submissions/1/7-9/0xac.parquet", {}),
        ("PUT", KEY + "x", {}),
        ("PUT", KEY, {"size": "13"}),
        ("PUT", KEY, {"size": "-12"}),
        ("PUT", KEY, {"expires": "1800000000"}),
        ("PUT", KEY, {"signature": "0" * 64}),
        ("PUT", KEY, {"signature": ""}),
        ("PUT", KEY, {"signature": "é"}),
        ("PUT", KEY, {"expires": ""}),
        ("PUT", KEY, {"expires": "soon"}),
        ("PUT", KEY, {"size": "1" * 5000}),
        ("PUT", KEY, {"size": None}),
        ("PUT", KEY, {"signature": None}),
    ],
)
def test_link__forged__refused(store, method, key, changes):
    _, query = read_link(store.sign_link("PUT", KEY, now=NOW, seconds=60, size=12))
    query = {name: value for name, value in (query | changes).items() if value is not None}
    with pytest.raises(ProtocolError, match="bad_link") as caught:
        store.require_link(method, key, query, now=NOW)
    assert caught.value.status == 403


def test_link__of_another_secret__refused(store, tmp_path):
    other = ObjectStore.open(f"file://{tmp_path / 'store'}", LinkSigner(secret=b"other", base_url="http://x"))
    _, query = read_link(other.sign_link("GET", KEY, now=NOW, seconds=60))
    assert refuse(store.require_link, "GET", KEY, query, now=NOW) == "bad_link"


words = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,8}", fullmatch=True)


@given(st.lists(words, min_size=1, max_size=4).map("/".join), st.integers(0, 10**9), st.integers(0, 2**40))
def test_link__any_key_and_size__allowed_as_signed(key, seconds, size):
    store = ObjectStore.open("file:///tmp", SIGNER)
    _, query = read_link(store.sign_link("PUT", key, now=NOW, seconds=seconds, size=size))
    assert store.require_link("PUT", key, query, now=NOW) == size


@pytest.mark.parametrize("url", ["nothing://x", "no url at all", "file:///proc/nothing/here"])
def test_open__unknown_or_unusable__operator_error(url):
    with pytest.raises(OperatorError, match="bad_store"):
        ObjectStore.open(url, SIGNER)


def test_open__folder__is_created(tmp_path):
    ObjectStore.open(f"file://{tmp_path}/a/b", SIGNER)
    assert Path(tmp_path, "a", "b").is_dir()
