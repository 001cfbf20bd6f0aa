import pytest

from covey.urls import hide_secrets

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("https://me:secret@node.example:8545/rpc?key=secret#x", "https://node.example:8545/rpc"),
        ("http://token@[::1]:80/a/b", "http://[::1]:80/a/b"),
        ("https://a@b:secret@node.example/", "https://node.example/"),
        ("http://[::1", "a URL that cannot be read"),
        ("", ""),
    ],
)
def test_hide_secrets__address_stays_and_secrets_go(url, shown):
    assert hide_secrets(url) == shown
