"""Checks of URLs from operators and peers, and forms of them that are safe in messages and logs."""

from urllib.parse import urlsplit, urlunsplit


def hide_secrets(url: str) -> str:
    """Return a URL without user, password, query and fragment, which contain the secrets of signed links and providers.

    Example: "https://me:secret@node.example:8545/rpc?key=1" -> "https://node.example:8545/rpc".
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an invalid URL"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def is_plain_url(text: str) -> bool:
    """Return whether a URL can be requested and can be an argument in a command.

    It must be http or https, printable, without spaces and at most 200 characters long, and its port must not be 0.
    """
    if len(text) > 200 or not text.isprintable() or any(c.isspace() for c in text):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port over 65535 raises it as well.
        return False


def is_public_url(text: str) -> bool:
    """Return whether a URL is plain and can be shown to everyone.

    It must not have a user, a query or a fragment, because each could be a secret.
    """
    return is_plain_url(text) and hide_secrets(text) == text


def show_host(url: str) -> str:
    """Return only scheme, host and port, because the path of a provider's URL may contain a key.

    Example: "https://node.example:8545/v2/key" -> "https://node.example:8545".
    """
    scheme, slashes, rest = hide_secrets(url).partition("://")
    return f"{scheme}{slashes}{rest.partition('/')[0]}"


def has_only_host(url: str) -> bool:
    """Return whether a URL has only scheme, host and port, so that it can be published.

    A user, path, query or fragment could be a secret.
    """
    return url.removesuffix("/") == show_host(url)
