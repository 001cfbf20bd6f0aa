"""Several folders of `covey join`, whose workers each work for all the pools."""

import itertools
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from covey.errors import OperatorError
from covey.local.folder import read_processes


def merge_processes(folder: Path, others: Sequence[Path]) -> dict[str, str]:
    """Return the commands of a folder. Each of its workers also gets the settings of the same worker of `others`.

    Raises the errors of `read_processes`, and OperatorError("other_workers") if a folder is not one of workers, or does
    not have the same number of them.
    """
    commands = read_processes(folder)
    if not others:
        return commands
    first = _list_workers(folder, commands)
    for other in others:
        workers = _list_workers(other, read_processes(other))
        if workers.keys() != first.keys():
            raise OperatorError(
                "other_workers",
                f"{folder} has the workers {', '.join(first)}, and {other} has {', '.join(workers)}",
                fix="Join each pool with the same --gpus, so that each worker has a device of its own",
            )
        for name, words in workers.items():
            first[name] += [
                str((other / word).absolute()) if before == "--config" else word
                for before, word in itertools.pairwise(words[1:])
            ]
    return {name: shlex.join(words) for name, words in first.items()}


def _list_workers(folder: Path, commands: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the words of each command. Raises OperatorError("other_workers") if one does not run a worker."""
    words = {name: shlex.split(command) for name, command in commands.items()}
    for name, each in words.items():
        if each[:2] != ["worker", "run"]:
            raise OperatorError(
                "other_workers",
                f"{folder} has the process {name}, which is not a worker",
                fix="Start a pool by itself, and name only folders of covey join together",
            )
    return words
