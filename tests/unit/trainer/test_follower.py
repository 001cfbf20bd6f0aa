"""A rank whose settings are not rank 0's."""

import pytest

from covey.errors import OperatorError
from covey.model.files import load_model
from covey.model.tiny import tiny_folder
from tests.fakes.samples import build_learner
from trainer.follower import do_share
from trainer.orders import Order, Verb

pytestmark = pytest.mark.unit


def test_do_share__recomputing_without_a_scratch_model__says_that_the_settings_differ() -> None:
    learner = build_learner(load_model(tiny_folder(), "float32"))
    with pytest.raises(OperatorError, match=r"other_settings.*same old_policy and kl_coefficient"):
        do_share(Order(verb=Verb.RECOMPUTE), learner, None)
