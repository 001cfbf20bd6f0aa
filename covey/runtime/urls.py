"""URLs that people and strangers name: which are plain ones, and how messages and logs may show them."""

from urllib.parse import urlsplit, urlunsplit


def hide_secrets(url: str) -> str:
    """Without user, password, query and fragment: signed links and nodes of providers hold secrets there.

    Example: "https://me:secret@node.example:8545/rpc?key=1" -> "https://node.example:8545/rpc".
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a URL that cannot be read"
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def is_plain_url(text: str) -> bool:
    """Whether a URL can be asked and may stand in a command: http or https, printable, no blanks, a port from 1."""
    if len(text) > 200 or not text.isprintable() or any(c.isspace() for c in text):
        return False
    try:
        parts = urlsplit(text)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # also of a port over 65535
        return False


def is_public_url(text: str) -> bool:
    """Whether everybody may see a plain URL: it has no user, query or fragment, which could be a secret."""
    return is_plain_url(text) and hide_secrets(text) == text


def show_host(url: str) -> str:
    """Scheme, host and port alone: a provider's node may have its key in the path.

    Example: "https://node.example:8545/v2/key" -> "https://node.example:8545".
    """
    scheme, slashes, rest = hide_secrets(url).partition("://")
    return f"{scheme}{slashes}{rest.partition('/')[0]}"


def has_only_host(url: str) -> bool:
    """Whether a URL can be published: it has no user, path, query or fragment that could be a secret."""
    return url.removesuffix("/") == show_host(url)
