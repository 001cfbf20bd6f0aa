"""Limits of finality: the setting `finality`, and how long the outbox watches mined transactions and refusals."""

from typing import Literal

Finality = Literal["latest", "safe", "finalized"]
"""Tag of the newest block that counts as final.

With "latest" every block counts, and events are undone only after a reorganisation.
"""
KEPT_BLOCKS = 128
"""Maximum depth, in blocks, of a reorganisation that does no harm. The follower can roll back this far.

The outbox watches a mined transaction until this number of blocks follow it, even if the node calls its block final
earlier.
"""
REFUSED_HEADS = 3
"""Number of different newest blocks at which a contract must refuse a call before the refusal is final."""
REFUSED_SECONDS = 120
"""Minimum time in seconds, by the clocks of the newest blocks, between the first and the last refusal. A lagging node
has caught up by then, whatever the time between blocks.
"""
