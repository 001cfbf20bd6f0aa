"""The documented Python surface, whose names `covey` exports: `covey.train`, `covey.LocalRun`, and so on."""

from covey.python.environments import Environment
from covey.python.evaluations import evaluate
from covey.python.pools import Pool
from covey.python.runs import LocalRun, train

__all__ = ["Environment", "LocalRun", "Pool", "evaluate", "train"]
