"""The worker's cycles, one after another, so that a test knows what has happened."""

from covey.runtime.cycle import CycleResult
from worker import loop
from worker.context import Context


async def take_turn(ctx: Context) -> CycleResult:
    """Send what is unsent, then do one task from claim to countersignature. Return the result of the claim."""
    await loop.submit_pending(ctx)
    await loop.fetch(ctx)
    outcome = await loop.claim(ctx)
    if outcome is CycleResult.DONE:
        assert await loop.work(ctx) is CycleResult.DONE
        assert await loop.sign_next(ctx) is CycleResult.DONE
        assert await loop.submit_pending(ctx) is CycleResult.DONE
    return outcome
