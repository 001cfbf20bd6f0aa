"""The public package `toploc`: which version loads, and how its answers are read."""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks.engines.toploc_peer import VERSION, load, to_tensor, verify

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("version", "problem"), [("0.1.5", "toploc is 0.1.5, not 0.1.6"), (None, "cannot be imported")]
)
def test_load__absent_or_of_another_version__says_how_to_install_it(
    version: str | None, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = None
    if version is not None:
        module = ModuleType("toploc")
        module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toploc", module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ImportError, match=problem) as caught:
        load()
    assert f'"toploc=={VERSION}"' in str(caught.value)


def test_load__this_version__is_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("toploc")
    module.__version__ = VERSION  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toploc", module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert load() is module


def test_to_tensor__bits__are_bfloat16_values() -> None:
    tensor = to_tensor(np.array([0x3F80, 0xC000, 0x0000], np.uint16))
    assert tensor.dtype == torch.bfloat16
    assert tensor.tolist() == [1.0, -2.0, 0.0]


def test_verify__results__are_triples() -> None:
    result = SimpleNamespace(exp_mismatches=1, mant_err_mean=0.5, mant_err_median=0.25)
    peer = ModuleType("toploc")
    peer.verify_proofs_bytes = lambda *_: [result, result]  # type: ignore[attr-defined]
    assert verify(peer, torch.zeros(2, 4), [b"", b""], 32, 128) == [(1, 0.5, 0.25)] * 2
