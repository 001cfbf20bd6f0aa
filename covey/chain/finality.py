"""Which blocks a role takes for lasting: the setting `finality`, and how long the outbox looks at what is mined."""

from typing import Literal

Finality = Literal["latest", "safe", "finalized"]
"""Tag of the newest block that is taken for lasting.  "latest" takes every block; only a reorganisation corrects it."""
KEPT_BLOCKS = 128
"""Blocks that a reorganisation may take back without harm: the follower rolls back that far, and the outbox looks at a
mined transaction until that many blocks follow it, whatever the node calls final."""
REFUSED_HEADS = 3
"""Different newest blocks at which a call must have been refused before the refusal stands."""
REFUSED_BLOCKS = 8
"""Blocks from the first of these refusals to the last: a node that lags has what it lacked by then."""
