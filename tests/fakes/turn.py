"""The worker's cycles one after the other, so that a test knows what has happened."""

from covey.runtime.cycle import CycleResult
from worker import loop
from worker.context import Context


async def take_turn(ctx: Context) -> CycleResult:
    """Send what is unsent, then one task from claim to countersignature; what the claim said."""
    await loop.submit_pending(ctx)
    await loop.fetch(ctx)
    outcome = await loop.claim(ctx)
    if outcome is CycleResult.DONE:
        assert await loop.work(ctx) is CycleResult.DONE
        assert await loop.sign_next(ctx) is CycleResult.DONE
        assert await loop.submit_pending(ctx) is CycleResult.DONE
    return outcome
