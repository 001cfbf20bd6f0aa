"""Which policies a pool has, as its coordinator reports them."""

import pytest

from covey.errors import OperatorError
from covey.network.public_policies import choose_policy, list_policies
from covey.protocol.api.public import StatusView

pytestmark = pytest.mark.unit
HASHES = ["0x" + f"{step:02x}" * 32 for step in range(3)]


def make_status(*hashes: str | None) -> StatusView:
    steps = [
        {
            "step": step, "state": "open", "record_hash": found, "groups_accepted": 0, "groups_sampled": 0,
            "groups_live": 0, "is_capped": False,
        }
        for step, found in enumerate(hashes)
    ]  # fmt: skip
    empty: dict[str, object] = {"tasks": {}, "submissions": {}, "reasons": {}, "nodes": {}, "validators": {}}
    values = {"pool": 7, "time": 1, "block": 1, "ended": False, "settled": False, "step": 0, "epochs": ()}
    return StatusView.model_validate(empty | values | {"steps": steps})


def test_choose_policy__published_steps__newest_or_the_one_that_is_asked_for():
    status = make_status(*HASHES, None)  # the last one is not on chain yet
    assert list_policies(status) == dict(enumerate(HASHES))
    assert choose_policy(status, None) == (2, HASHES[2])
    assert choose_policy(status, 1) == (1, HASHES[1])


@pytest.mark.parametrize(
    ("status", "step", "found"),
    [(make_status(*HASHES, None), 3, "the steps 0 to 2"), (make_status(None), None, "none yet")],
)
def test_choose_policy__not_published__is_refused(status: StatusView, step: int | None, found: str):
    with pytest.raises(OperatorError, match=f"no_policy: policy {step or 0} of pool 7 is not .*{found}"):
        choose_policy(status, step)
