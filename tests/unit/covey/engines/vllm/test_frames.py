"""Frames between the engine and its subprocess: what is sent arrives, and what is damaged is a ValueError."""

import json
import socket
import struct

import numpy as np
import pytest

from covey.engines.vllm.frames import MAX_HEADER, MAX_PAYLOAD, Frame, receive, send

pytestmark = pytest.mark.unit


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(60)
        theirs.settimeout(60)
        yield ours, theirs


def test_receive__a_frame_with_arrays__is_what_was_sent(ends):
    sent = Frame("proofs", {"device": "cpu", "seed": 7, "rate": 0.5, "is_full": True, "note": None}, {}, 3)
    arrays = {"tokens": np.arange(6, dtype=np.uint32).reshape(2, 3), "logits": np.array([1.5, -2.0], np.float32)}
    send(ends[0], Frame(sent.kind, sent.values, arrays, sent.call))
    frame = receive(ends[1])
    assert (frame.kind, frame.values, frame.call) == (sent.kind, sent.values, 3)
    assert {name: (array.dtype, array.tolist()) for name, array in frame.arrays.items()} == {
        "tokens": (np.uint32, [[0, 1, 2], [3, 4, 5]]),
        "logits": (np.float32, [1.5, -2.0]),
    }


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b"5", b""),
        (b'"generate"', b""),
        (b"[1, 2]", b""),
        (b"{}", b""),
        (b"not JSON", b""),
        (b"\xff\xfe", b""),
        (json.dumps(["stats", {}, 1]).encode(), b"\x00" * 16),
        (json.dumps(["stats", {}, 1]).encode(), b"junk"),
    ],
)
def test_receive__damaged_frame__is_a_value_error(ends, header, payload):
    ends[0].sendall(struct.pack(">IQ", len(header), len(payload)) + header + payload)
    with pytest.raises(ValueError):  # noqa: PT011 (json and safetensors word it)
        receive(ends[1])


@pytest.mark.parametrize("sizes", [(MAX_HEADER + 1, 0), (2, MAX_PAYLOAD + 1)])
def test_receive__sizes_over_the_limits__are_refused_before_anything_is_read(ends, sizes):
    ends[0].sendall(struct.pack(">IQ", *sizes))
    with pytest.raises(ValueError, match="exceeds the limits"):
        receive(ends[1])


def test_receive__closed_in_the_middle__is_the_end(ends):
    ends[0].sendall(struct.pack(">IQ", 100, 0) + b"[")
    ends[0].shutdown(socket.SHUT_WR)
    with pytest.raises(EOFError):
        receive(ends[1])
