"""The kernels are compiled for the arrays of real deltas, whose files are mapped read-only."""

import numpy as np
import pytest

from covey.shardcast.delta.image_codec import DeltaFile, ImageBlock, encode_image
from covey.shardcast.delta.kernels import compile_all
from covey.shardcast.delta.warm_up import compile_kernels

pytestmark = pytest.mark.unit


def list_signatures():
    return {kernel.__name__: set(kernel.signatures) for kernel in compile_all()}


def test_compile_kernels__leaves_nothing_to_compile_for_deltas_between_files(tmp_path):
    compile_kernels()
    before = list_signatures()
    assert all(before.values())
    images, block = [], ImageBlock(0, 2000, is_bfloat16=True)
    for index in range(3):
        values = np.arange(1000, dtype=np.uint16)
        values[index::10] += 1
        path = tmp_path / f"image-{index}"
        path.write_bytes(values.tobytes())
        images.append(np.memmap(path, np.uint8, mode="r"))
    base, child = images[0], np.empty(2000, np.uint8)
    for index in range(2):
        path = tmp_path / f"delta-{index}"
        with path.open("wb") as file:
            encode_image(images[index], images[index + 1], blocks=[block], file=file)
        DeltaFile(np.memmap(path, np.uint8, mode="r").data, [block]).apply(0, base, child)
        base = child
    assert (child == images[2]).all()
    assert list_signatures() == before
