"""Runs bytes -> bytes functions on hostile input, in isolated processes that may crash.

A `Sandbox` keeps warm processes in which the function is loaded. Each call runs in a fork of one of them, under
`CallLimits`, at the strongest isolation level that works on this machine (`find_isolation`). A call cannot change
anything that a later call sees, and every process that it starts ends with it. Nothing is unpickled.
"""

from covey.sandbox.call_limits import WALL_FACTOR, CallLimits
from covey.sandbox.inside import is_inside
from covey.sandbox.isolation import LEVELS, Isolation, IsolationSetting, Level
from covey.sandbox.isolation_trials import IsolationTrial, find_isolation, require_isolation, try_level
from covey.sandbox.sandbox_errors import SandboxError
from covey.sandbox.warm_processes import ATTEMPTS, Sandbox
from covey.sandbox.zygote_process import CallOutcome

__all__ = [
    "ATTEMPTS",
    "LEVELS",
    "WALL_FACTOR",
    "CallLimits",
    "CallOutcome",
    "Isolation",
    "IsolationSetting",
    "IsolationTrial",
    "Level",
    "Sandbox",
    "SandboxError",
    "find_isolation",
    "is_inside",
    "require_isolation",
    "try_level",
]
