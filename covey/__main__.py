"""`python -m covey` is the command `covey`."""

from covey.cli import main

main()
