"""URLs as messages and logs may show them."""

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
