import pytest

from covey.errors import CoveyError, OperatorError, ProtocolError, TransientError

pytestmark = pytest.mark.unit


def test_errors__text__starts_with_the_code_and_ends_with_the_fix():
    assert str(TransientError("chain_unreachable", "no answer")) == "chain_unreachable: no answer"
    assert str(OperatorError("no_key", "no key here", fix="Make one")) == "no_key: no key here. Make one"
    refused = ProtocolError("lease_expired", "too late", status=409)
    assert (refused.code, refused.message, refused.status) == ("lease_expired", "too late", 409)
    assert ProtocolError("x", "y").status == 400


def test_errors__kinds__do_not_inherit_from_each_other():
    """`except TransientError` must never retry after an error of another kind."""
    kinds = (TransientError, ProtocolError, OperatorError)
    assert all(issubclass(kind, CoveyError) for kind in kinds)
    assert not any(issubclass(a, b) for a in kinds for b in kinds if a is not b)
