"""Entry point of `python -m covey`, which runs the command `covey`."""

from covey.cli import main

main()
