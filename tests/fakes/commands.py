"""Runs `covey` commands in the test's process."""

from covey.cli import app


def invoke(arguments: list[str]) -> object:
    """Run one command. Its output goes to standard output."""
    return app(arguments, standalone_mode=False)
