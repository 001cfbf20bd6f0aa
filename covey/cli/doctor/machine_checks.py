"""Checks of the machine that a role will run on: device, engine, memory, disk, port and clock."""

from collections.abc import Iterator
from pathlib import Path

from covey.cli.doctor.snapshot import (
    ChainFacts,
    Check,
    CoordinatorFacts,
    DeviceFacts,
    PoolFacts,
    Snapshot,
    Trouble,
    fail,
    ok,
    skip,
    tell,
    warn,
)
from covey.protocol.execution_contract import ExecutionContract
from covey.protocol.http_signatures import SKEW_SECONDS, WINDOW_SECONDS
from trainer.config import TrainerConfig

MASTER_BYTES = 16
"""Bytes per weight of a trainer: float32 weights, gradients and AdamW's two moments."""
CHECKPOINT_BYTES = 12
"""Bytes per weight of a checkpoint: float32 weights and the two moments."""
WORKING_SHARE = 1.5
"""Memory of an engine, as a multiple of the weights. Activations and KV cache take about half of the weights' size."""
MIN_DISK = 1 << 30
"""Minimum free bytes on the disk of each folder. This minimum applies even if the role needs less."""
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def spell_bytes(size: int) -> str:
    """Format a number of bytes with three digits, for example "23.5 GiB"."""
    power = min(len(_UNITS) - 1, max(0, size.bit_length() - 1) // 10)
    value = size / (1 << 10 * power)
    return f"{value:.3g} {_UNITS[power]}" if value < 1000 else f"{value:.0f} {_UNITS[power]}"


def check_device(seen: Snapshot) -> Check:
    if seen.device is None or isinstance(seen.device, Trouble):
        return tell("device", seen.device or Trouble(detail="not checked"))
    detail = f"{seen.device.name}, {spell_bytes(seen.device.memory)} of memory"
    if seen.device.has_idle_gpu:
        return warn(
            "device",
            f"{detail}; the settings use the CPU although this machine has an NVIDIA GPU",
            'Set device = "cuda" to use the GPU',
        )
    return ok("device", detail)


def check_engine(seen: Snapshot) -> Check:
    """Check that the pool's thresholds cover the role's engine, its build and this hardware."""
    if seen.engine is None:
        return skip("engine", "coordinator")
    if isinstance(seen.engine, Trouble):
        return tell("engine", seen.engine)
    if seen.engine.contract is not None:
        return _check_contract(seen, seen.engine.contract)
    lane = " in the calibrated lane" if seen.params is not None and seen.params.verification.contracts else ""
    return ok("engine", f"the pool accepts {seen.engine.name} with {seen.engine.build} on this device{lane}")


def _check_contract(seen: Snapshot, contract: ExecutionContract) -> Check:
    """Check that a quorum of validators can judge work under the contract."""
    named = f"the execution contract {contract.digest} ({contract.describe()})"
    counts = seen.coordinator.execution_contracts if isinstance(seen.coordinator, CoordinatorFacts) else {}
    count, quorum = counts.get(contract.digest, 0), 0 if seen.params is None else seen.params.quorum
    if seen.role == "validator" or count >= quorum:
        return ok("engine", f"{count} validators have {named}, which the pool accepts")
    return fail(
        "engine",
        f"{count} validators have {named}, but {quorum} must judge each submission, so the pool does not accept it now",
        "Ask the operator for validators with this contract, or use a machine with another contract of the pool",
    )


def check_memory(seen: Snapshot) -> Check:
    """Estimate the memory needed from the newest policy. The check fails only if the weights alone do not fit."""
    if not isinstance(seen.device, DeviceFacts):
        return skip("memory", "device")
    size, weights = _measure_policy(seen)
    if size is None or weights is None:
        return skip_unpublished("memory", seen)
    if seen.role == "trainer":
        needed, fix = MASTER_BYTES * weights, "Use a larger device, or shard the model over several with torchrun"
    else:
        needed, fix = int(WORKING_SHARE * size), "Use a larger device, or lower batch"
    detail = (
        f"the weights need {spell_bytes(size)}, everything about {spell_bytes(needed)}; the "
        f"device has {spell_bytes(seen.device.memory)}"
    )
    if seen.device.memory < size:
        return fail("memory", detail, fix)
    return ok("memory", detail) if needed <= seen.device.memory else warn("memory", detail, fix)


def check_disk(seen: Snapshot) -> Check:
    details, lacking, least = [], [], dict(_list_needs(seen))
    for root, folder in seen.folders.items():
        if isinstance(folder, Trouble):
            return tell("disk", folder)
        if not folder.is_writable:
            return fail(
                "disk",
                f"{root} cannot be written to",
                "Set home to another folder, or get write permission for this one",
            )
        needed = max(MIN_DISK, least.get(root, 0) - folder.held)
        details.append(f"{root} has {spell_bytes(folder.free)} free and needs {spell_bytes(needed)}")
        if folder.free < needed:
            lacking.append(root)
    fix = f"Free space at {', '.join(map(str, lacking))}, or set another folder in the settings"
    return warn("disk", "; ".join(details), fix) if lacking else ok("disk", "; ".join(details))


def _list_needs(seen: Snapshot) -> Iterator[tuple[Path, int]]:
    """Yield the number of bytes that a role stores in each folder.

    Yields nothing if the size of a policy is unknown.
    """
    size, weights = _measure_policy(seen)
    if size is None or weights is None:
        return
    if isinstance(seen.settings, TrainerConfig):
        checkpoints = seen.settings.ckpt.keep + 1
        yield seen.settings.home, checkpoints * CHECKPOINT_BYTES * weights + 3 * size
        yield seen.settings.origin_root, seen.settings.keep_policies * size
    elif seen.role != "coordinator" and seen.params is not None:
        yield seen.settings.home, (seen.params.max_staleness + 3) * size  # includes one that is being downloaded


def _measure_policy(seen: Snapshot) -> tuple[int | None, int | None]:
    """Return the size in bytes and the number of weights of the newest policy, or None for both if unknown."""
    if seen.record is None or seen.params is None:
        return None, None
    width = 4 if seen.params.model.compute_dtype == "float32" else 2
    return seen.record.size, seen.record.size // width


def skip_unpublished(name: str, seen: Snapshot) -> Check:
    if isinstance(seen.pool, PoolFacts) and not seen.pool.steps:
        return Check(name=name, status="skip", detail="no policy has been published yet")
    return skip(name, "coordinator" if seen.params is None else "relays")


def check_port(seen: Snapshot) -> Check:
    place = f"{getattr(seen.settings, 'host', '')}:{getattr(seen.settings, 'port', '')}"
    if seen.port is None:
        return ok("port", f"{place} is free")
    if isinstance(seen.coordinator, CoordinatorFacts) and seen.coordinator.pool == seen.settings.pool:
        return ok("port", f"the coordinator of pool {seen.coordinator.pool} already listens on {place}")
    return tell("port", seen.port)


def check_clock(seen: Snapshot) -> Check:
    """Compare the clock with the coordinator's.

    A signature is valid for a minute, and only a few seconds before its own time.
    """
    fix = "Set this machine's clock, for example with timedatectl set-ntp true"
    details = []
    if isinstance(seen.coordinator, CoordinatorFacts):
        ahead = seen.coordinator.offset
        details.append(f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the coordinator")
        if not -WINDOW_SECONDS <= ahead <= SKEW_SECONDS + 1:  # the coordinator answers in whole seconds
            return fail("clock", details[0], fix)
    if isinstance(seen.chain, ChainFacts):
        lag = seen.chain.head_time - seen.now
        details.append(f"the newest block is {abs(lag):.0f} s {'ahead' if lag > 0 else 'old'}")
        if lag > WINDOW_SECONDS:
            return fail("clock", details[-1], fix)
    return ok("clock", ", ".join(details)) if details else skip("clock", "chain")
