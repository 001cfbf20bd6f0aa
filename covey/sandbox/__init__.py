"""Runs bytes -> bytes functions on hostile input, in isolated processes that may die.

A `Sandbox` keeps warm processes with the function loaded.  Each call runs in a fork of one, under `Limits`, on the best
rung of isolation that holds on this machine (`find_isolation`).  A call can change nothing that a later call sees, and
what it starts ends with it.  Nothing is unpickled.
"""

from covey.sandbox.errors import SandboxError
from covey.sandbox.inside import is_inside
from covey.sandbox.isolation import RUNGS, Isolation, IsolationSetting, Rung
from covey.sandbox.ladder import Trial, find_isolation, require_isolation, try_rung
from covey.sandbox.limits import WALL_FACTOR, Limits
from covey.sandbox.pool import ATTEMPTS, Sandbox
from covey.sandbox.process import Outcome

__all__ = [
    "ATTEMPTS",
    "RUNGS",
    "WALL_FACTOR",
    "Isolation",
    "IsolationSetting",
    "Limits",
    "Outcome",
    "Rung",
    "Sandbox",
    "SandboxError",
    "Trial",
    "find_isolation",
    "is_inside",
    "require_isolation",
    "try_rung",
]
