"""The shipped worker in its own process, with a cheat's submissions: `python -m tests.e2e.cheating_worker KIND`.

KIND is a class of tests/cheats. Everything else is the shipped worker's: registration, leases, policies, signing and
sending.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.cheats.rows import JUDGED
from tests.e2e.submitting import cheating
from worker import app
from worker.config import WorkerConfig


def main(arguments: Sequence[str] | None = None) -> None:
    kinds = {each.__name__: each for each in JUDGED}
    parser = argparse.ArgumentParser(prog="cheating_worker", description=__doc__)
    parser.add_argument("kind", choices=sorted(kinds))
    parser.add_argument("--config", type=Path, required=True)
    options = parser.parse_args(arguments)
    config = WorkerConfig.load(options.config, {})
    with cheating(kinds[options.kind]()):
        app.run([config])


if __name__ == "__main__":
    main()
