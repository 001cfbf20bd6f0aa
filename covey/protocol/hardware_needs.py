"""What a pool asks of a worker's machine, and the comparison with what a machine has.

The needs are in the pool's parameters, so a contributor can read them before it stakes. They are advice: no party can
check the hardware of another one, so nobody is refused or slashed for it.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_BYTES = 1 << 50
_COUNT = re.compile(r"[1-9][0-9]{0,3}")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
_WORD = re.compile(r"[a-z0-9]+")
NAME_LENGTH = 48
"""Number of characters of an accelerator's name that an execution contract keeps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One GPU of a machine. Example: name="NVIDIA H100 80GB HBM3", memory_bytes=85_000_000_000."""

    name: str
    """Name as torch reports it."""
    memory_bytes: int
    """Total memory in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineHardware:
    """Hardware that a contributor gives to its workers."""

    memory_bytes: int
    """Memory of the machine in bytes, which counts for a worker on the CPU."""
    accelerators: tuple[Accelerator, ...] = ()
    """GPUs that the workers use. Empty: they use the CPU."""
    free_disk_bytes: int
    """Free bytes on the disk of the workers' folder."""
    bandwidth_bits: int | None = None
    """Download bandwidth in bits per second, as the contributor states it. None: it is unknown, so it is not
    compared.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceleratorNeed:
    """A number of GPUs of one model. Example: `AcceleratorNeed.parse("gpu:count=8;model=h100")`."""

    count: int = 1
    model: str = ""
    """Words that must follow each other in the name of each GPU. Case does not matter. Empty: any model."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "gpu", or "gpu:" with `count=N` and `model=WORDS` in any order, separated by ";".

        Raises ValueError if the text has another form.
        """
        kind, _, rest = text.partition(":")
        pairs = [part.partition("=") for part in rest.split(";")] if rest else []
        values = {name: value for name, _, value in pairs}
        count, model = values.pop("count", "1"), values.pop("model", None)
        is_known = kind == "gpu" and not values and len(pairs) == len({name for name, *_ in pairs})
        if not is_known or not _COUNT.fullmatch(count) or (model is not None and not _MODEL.fullmatch(model)):
            raise ValueError(f"{text!r} is not of the form gpu:count=8;model=h100")
        return cls(count=int(count), model=model or "")

    def is_met_by(self, accelerators: Sequence[Accelerator]) -> bool:
        """Return whether enough of the accelerators have the model's words in their names."""
        return sum(self._has_model(each.name) for each in accelerators) >= self.count

    def _has_model(self, name: str) -> bool:
        """Compare whole words, so that "a10" does not name an A100."""
        words, wanted = _WORD.findall(name.lower()), _WORD.findall(self.model.lower())
        return any(words[i : i + len(wanted)] == wanted for i in range(len(words) - len(wanted) + 1))


def _require_form(text: str) -> str:
    AcceleratorNeed.parse(text)
    return text


Bytes = Annotated[int, Field(ge=0, le=MAX_BYTES)]


class HardwareNeeds(BaseModel):
    """What a pool asks of each worker's machine. Example: `HardwareNeeds(accelerators=("gpu:count=8;model=h100",))`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_memory_bytes: Bytes = 0
    """Minimum memory in bytes of each GPU that a worker uses, or of the machine if it uses the CPU. 0: any."""
    accelerators: tuple[Annotated[str, Field(max_length=96), AfterValidator(_require_form)], ...] = Field(
        default=(), max_length=16
    )
    """Alternatives, of which the machine must have one, for example "gpu:count=8;model=h100". `count` is 1 if it is
    absent, and `model` is words of the GPU's name. Empty: a CPU suffices.
    """
    min_disk_bytes: Bytes = 0
    """Minimum free bytes on the disk of a worker's folder. 0: any."""
    min_bandwidth_bits: int = Field(default=0, ge=0, le=10**15)
    """Minimum download bandwidth in bits per second. It is compared with what a contributor states. 0: any."""

    def list_texts(self) -> list[str]:
        """Return each need in words, for example ["80.0 GiB of memory", "gpu:count=8;model=h100"]."""
        return [
            *([f"{_spell(self.min_memory_bytes)} of memory per device"] if self.min_memory_bytes else []),
            *([" or ".join(self.accelerators)] if self.accelerators else []),
            *([f"{_spell(self.min_disk_bytes)} of free disk"] if self.min_disk_bytes else []),
            *([f"{self.min_bandwidth_bits / 1e6:g} Mbit/s of download"] if self.min_bandwidth_bits else []),
        ]


def list_misfits(needs: HardwareNeeds, machine: MachineHardware, *, models: Collection[str] = ()) -> list[str]:
    """Return one sentence for each need that the machine does not meet.

    `models` are exact names of accelerators, of which the pool requires one. Empty: it requires none.
    """
    found = [_find_accelerator_misfit(needs, machine), _find_memory_misfit(needs, machine)]
    if models and not {name[:NAME_LENGTH] for name in models} & {
        each.name[:NAME_LENGTH] for each in machine.accelerators
    }:
        found.append(f"The pool accepts work of {' or '.join(sorted(models))} only, and {_describe(machine)}.")
    if machine.free_disk_bytes < needs.min_disk_bytes:
        asked, free = _spell(needs.min_disk_bytes), _spell(machine.free_disk_bytes)
        found.append(f"The pool asks for {asked} of free disk, and the workers' folder has {free}.")
    if machine.bandwidth_bits is not None and machine.bandwidth_bits < needs.min_bandwidth_bits:
        least, stated = needs.min_bandwidth_bits / 1e6, machine.bandwidth_bits / 1e6
        found.append(f"The pool asks for {least:g} Mbit/s of download, and this machine has {stated:g} Mbit/s.")
    return [sentence for sentence in found if sentence is not None]


def _find_accelerator_misfit(needs: HardwareNeeds, machine: MachineHardware) -> str | None:
    alternatives = [AcceleratorNeed.parse(text) for text in needs.accelerators]
    if not alternatives or any(each.is_met_by(machine.accelerators) for each in alternatives):
        return None
    return f"The pool asks for {' or '.join(needs.accelerators)}, and {_describe(machine)}."


def _find_memory_misfit(needs: HardwareNeeds, machine: MachineHardware) -> str | None:
    """Compare the memory of the GPUs that meet the pool's alternatives, or else of the largest device."""
    asked = _spell(needs.min_memory_bytes)
    sizes = [each.memory_bytes for each in machine.accelerators] or [machine.memory_bytes]
    if max(sizes) < needs.min_memory_bytes:
        device = "its largest GPU" if machine.accelerators else "this machine"
        return f"The pool asks for {asked} of memory, and {device} has {_spell(max(sizes))}."
    alternatives = [AcceleratorNeed.parse(text) for text in needs.accelerators]
    large = [each for each in machine.accelerators if each.memory_bytes >= needs.min_memory_bytes]
    is_equipped = any(each.is_met_by(machine.accelerators) for each in alternatives)
    if is_equipped and not any(each.is_met_by(large) for each in alternatives):
        return f"The pool asks for {asked} of memory, and too few of the GPUs that it names have it."
    return None


def _describe(machine: MachineHardware) -> str:
    names = [each.name for each in machine.accelerators]
    counts = [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)]
    return f"this machine has {', '.join(counts)}" if counts else "the workers of this machine use the CPU"


def _spell(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
