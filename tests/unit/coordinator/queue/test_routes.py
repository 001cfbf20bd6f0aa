import pytest

from coordinator.queue.routes import JobQueue, parse_queues
from covey.errors import OperatorError

pytestmark = pytest.mark.unit


def test_parse_queues__names_in_any_order__are_in_that_of_the_queues():
    assert parse_queues("bulk, now") == [JobQueue.NOW, JobQueue.BULK]


@pytest.mark.parametrize("text", ["", "now,later"])
def test_parse_queues__unknown_one__names_it_and_the_known_ones(text: str):
    with pytest.raises(OperatorError, match=r"unknown_queue.*now, chain, bulk"):
        parse_queues(text)
