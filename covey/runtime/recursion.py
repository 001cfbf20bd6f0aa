"""Python's limit on nested calls, which protects the C stack from deeply nested input."""

import sys

RECURSION_LIMIT = 1000
"""Python's default limit of nested calls."""


def limit_recursion() -> None:
    """Restore Python's default recursion limit.

    py_ecc, which eth-account imports, raises the limit to 100,000. Then JSON with a few thousand nested brackets
    overflows the C stack and ends the process. Call this after all imports, before input from peers is read.
    """
    sys.setrecursionlimit(RECURSION_LIMIT)
