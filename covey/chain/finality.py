"""Limits of finality: the setting `finality`, and how long the outbox watches mined transactions and refusals."""

from typing import Literal

Finality = Literal["latest", "safe", "finalized"]
"""Tag of the newest block that counts as final. "latest" counts every block, which is corrected only by a
reorganisation."""
KEPT_BLOCKS = 128
"""Largest number of blocks that a reorganisation may replace without harm. The follower rolls back that far. The outbox
watches a mined transaction until this number of blocks follow it, even if the node calls its block final earlier."""
REFUSED_HEADS = 3
"""Number of different newest blocks at which a call must be refused before the refusal is final."""
REFUSED_BLOCKS = 8
"""Minimum number of blocks from the first of these refusals to the last. By then a lagging node has caught up."""
