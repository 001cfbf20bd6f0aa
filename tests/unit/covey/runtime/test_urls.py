import pytest

from covey.runtime.urls import has_only_host, hide_secrets, show_host

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545"),
        ("https://me:secret@node.example:8545/rpc?key=secret#x", "https://node.example:8545/rpc"),
        ("http://token@[::1]:80/a/b", "http://[::1]:80/a/b"),
        ("https://a@b:secret@node.example/", "https://node.example/"),
        ("http://[::1", "an invalid URL"),
        ("", ""),
    ],
)
def test_hide_secrets__keeps_the_address_and_removes_secrets(url, shown):
    assert hide_secrets(url) == shown


@pytest.mark.parametrize(
    ("url", "shown", "is_published"),
    [
        ("http://127.0.0.1:8545", "http://127.0.0.1:8545", True),
        ("https://node.example/", "https://node.example", True),
        ("https://node.example/v2/secret", "https://node.example", False),
        ("https://me:secret@node.example:8545", "https://node.example:8545", False),
        ("https://node.example?key=secret", "https://node.example", False),
        ("https://node.example/?key=secret", "https://node.example", False),
        ("https://node.example#secret", "https://node.example", False),
        ("http://[::1", "an invalid URL", False),
    ],
)
def test_show_host__path_of_a_providers_node__is_a_secret(url, shown, is_published):
    assert (show_host(url), has_only_host(url)) == (shown, is_published)
