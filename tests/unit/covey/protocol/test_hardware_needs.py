"""Needs and machines, with the expected sentences written by hand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from covey.protocol.hardware_needs import Accelerator, AcceleratorNeed, HardwareNeeds, MachineHardware, list_misfits

pytestmark = pytest.mark.unit
GIB = 1 << 30
H100, A100, L40 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"


def build_machine(*names: str, gpu_gib: int = 80, **values: int) -> MachineHardware:
    """Build a machine with 64 GiB of memory, 500 GiB of free disk and GPUs of these names."""
    gpus = tuple(Accelerator(name=name, memory_bytes=gpu_gib * GIB) for name in names)
    return MachineHardware(**({"memory_bytes": 64 * GIB, "free_disk_bytes": 500 * GIB, "accelerators": gpus} | values))


@pytest.mark.parametrize(
    ("text", "count", "model"),
    [
        ("gpu", 1, ""),
        ("gpu:count=8;model=h100", 8, "h100"),
        ("gpu:model=rtx 4090;count=2", 2, "rtx 4090"),
        ("gpu:count=16", 16, ""),
    ],
)
def test_parse__valid_text__is_read(text: str, count: int, model: str):
    assert AcceleratorNeed.parse(text) == AcceleratorNeed(count=count, model=model)


@pytest.mark.parametrize(
    "text",
    [
        "", "cpu", "gpu:count=0", "gpu:count=-1", "gpu:count=8;count=9", "gpu:count=١", "gpu:memory=8", "gpu:model=",
        "gpu:model=h100;", "gpu;count=8", "gpu:count=8,model=h100", "gpu:model=h100\x1b[2J", "gpu:count=100000",
    ],
)  # fmt: skip
def test_parse__other_text__is_refused(text: str):
    with pytest.raises(ValueError, match=re.escape("is not of the form gpu:count=8;model=h100")):
        AcceleratorNeed.parse(text)
    with pytest.raises(ValidationError):
        HardwareNeeds(accelerators=(text,))


@given(st.text(max_size=96))
def test_parse__any_text__is_read_or_refused(text: str):
    """The text comes from whoever created the pool."""
    try:
        found = AcceleratorNeed.parse(text)
    except ValueError:
        return
    assert 1 <= found.count < 10_000
    assert found.model.isascii()
    assert found.model.isprintable()


@pytest.mark.parametrize(
    ("model", "names", "is_met"),
    [
        ("h100", [H100], True),
        ("H100 80GB", [H100], True),
        ("h100_80gb", [H100], True),
        ("100", [H100], False),
        ("a10", [A100], False),
        ("l4", [L40], False),
        ("h100 hbm3", [H100], False),
        ("h100", [A100, H100], True),
        ("", [L40], True),
        ("", [], False),
    ],
)
def test_is_met_by__model__is_compared_by_whole_words(model: str, names: list[str], is_met: bool):
    assert AcceleratorNeed(model=model).is_met_by(build_machine(*names).accelerators) == is_met


@pytest.mark.parametrize("machine", [build_machine(), build_machine(H100), build_machine(free_disk_bytes=0)])
def test_list_misfits__no_needs__every_machine_fits(machine: MachineHardware):
    assert list_misfits(HardwareNeeds(), machine) == []


NEEDS = HardwareNeeds(
    min_memory_bytes=40 * GIB,
    accelerators=("gpu:count=2;model=h100", "gpu:count=4;model=a100"),
    min_disk_bytes=200 * GIB,
    min_bandwidth_bits=100_000_000,
)


@pytest.mark.parametrize(
    ("machine", "sentences"),
    [
        (build_machine(H100, H100, bandwidth_bits=100_000_000), []),
        (build_machine(A100, A100, A100, A100), []),
        (
            build_machine(H100, A100, A100, A100),
            [
                "The pool asks for gpu:count=2;model=h100 or gpu:count=4;model=a100, and this machine has "
                "1 x NVIDIA H100 80GB HBM3, 3 x NVIDIA A100-SXM4-80GB."
            ],
        ),
        (
            build_machine(H100, H100, gpu_gib=39),
            ["The pool asks for 40.0 GiB of memory, and its largest GPU has 39.0 GiB."],
        ),
        (
            build_machine(memory_bytes=32 * GIB, free_disk_bytes=100 * GIB, bandwidth_bits=99_500_000),
            [
                "The pool asks for gpu:count=2;model=h100 or gpu:count=4;model=a100, and the workers of this machine "
                "use the CPU.",
                "The pool asks for 40.0 GiB of memory, and this machine has 32.0 GiB.",
                "The pool asks for 200.0 GiB of free disk, and the workers' folder has 100.0 GiB.",
                "The pool asks for 100 Mbit/s of download, and this machine has 99.5 Mbit/s.",
            ],
        ),
    ],
)
def test_list_misfits__machine__has_one_sentence_for_each(machine: MachineHardware, sentences: list[str]):
    assert list_misfits(NEEDS, machine) == sentences


def test_list_misfits__only_some_of_the_named_gpus_are_large__says_so():
    small, large = build_machine(H100, gpu_gib=24), build_machine(H100, L40)
    machine = build_machine(accelerators=(*small.accelerators, *large.accelerators))
    needs = HardwareNeeds(min_memory_bytes=40 * GIB, accelerators=("gpu:count=2;model=h100",))
    assert list_misfits(needs, machine) == [
        "The pool asks for 40.0 GiB of memory, and too few of the GPUs that it names have it."
    ]


def test_list_misfits__exact_model__must_be_the_name_of_a_gpu():
    assert list_misfits(HardwareNeeds(), build_machine(H100), models=(H100,)) == []
    assert list_misfits(HardwareNeeds(), build_machine(A100), models=(H100,)) == [
        f"The pool accepts work of {H100} only, and this machine has 1 x {A100}."
    ]


def test_list_texts__needs__are_readable():
    assert NEEDS.list_texts() == [
        "40.0 GiB of memory per device",
        "gpu:count=2;model=h100 or gpu:count=4;model=a100",
        "200.0 GiB of free disk",
        "100 Mbit/s of download",
    ]
    assert HardwareNeeds().list_texts() == []
