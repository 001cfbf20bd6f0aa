"""The row "isolation" of `covey doctor`: how graders and decoders are isolated here, and why stronger levels fail."""

from covey.cli.doctor.snapshot import Check, IsolationFacts, Snapshot, Trouble, ok, tell, warn
from covey.sandbox import LEVELS, IsolationSetting, require_isolation, try_level

ISOLATION_SECONDS = 20.0
FIX = "Install bubblewrap 0.8 or newer, or run pip install covey[isolation], and allow user namespaces"


def look_at_isolation(setting: IsolationSetting = "auto") -> IsolationFacts:
    """Find the isolation level in use, and why stronger ones do not work. Raises OperatorError("sandbox_isolation")."""
    isolation = require_isolation(setting)
    better = LEVELS[: LEVELS.index(isolation.level)] if setting == "auto" else ()
    return IsolationFacts(isolation=isolation, failed=tuple(map(try_level, better)))


def check_isolation(seen: Snapshot) -> Check:
    """Warn about a level that does not shield everything.

    The role still works, but at some risk to the machine's owner.
    """
    facts = seen.isolation
    if facts is None or isinstance(facts, Trouble):
        return tell("isolation", facts or Trouble(detail="not checked"))
    return warn("isolation", facts.detail, FIX) if facts.isolation.open_doors else ok("isolation", facts.detail)
