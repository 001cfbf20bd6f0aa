"""Runs `covey` commands in the test's process."""

from covey.cli import app


def invoke(arguments: list[str]) -> object:
    """Run one command; what it prints goes to the standard output."""
    return app(arguments, standalone_mode=False)
