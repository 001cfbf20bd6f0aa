"""Slots follow from the task, and the same slots give the same file."""

import pytest
from eth_utils.crypto import keccak

from covey import rollouts
from covey.devnet import deploy
from covey.engines.hf.engine import HuggingFaceEngine, prepare_process
from covey.environments import registry
from covey.environments.registry import DEMO
from covey.errors import ProtocolError
from covey.model.tiny import tiny_folder
from covey.protocol.ids import Step
from tests.fakes.pool import make_hash
from tests.fakes.tools import MANIFEST, Worker, build_domain, make_model_params, make_task

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def engine() -> HuggingFaceEngine:
    prepare_process(threads=1)
    engine = HuggingFaceEngine()
    engine.load_policy(tiny_folder(), 0)
    return engine


@pytest.fixture(scope="module")
def worker(engine: HuggingFaceEngine) -> Worker:
    return Worker(deploy.derive_wallet("test", "node"), make_model_params(), engine)


def seed_by_hand(*values: int | str) -> int:
    """Return keccak of the ABI words of beacon, pool, version, node, task, group[, sibling], cut to 63 bits."""
    words = [bytes.fromhex(v[2:]).rjust(32, b"\0") if isinstance(v, str) else v.to_bytes(32, "big") for v in values]
    return int.from_bytes(keccak(b"".join(words)), "big") >> 193


def test_build_slots__task__determines_seeds_and_prompts_in_order(worker: Worker, engine: HuggingFaceEngine):
    slots = rollouts.build_slots(
        build_domain(make_task(policy_version=Step(3)), worker.wallet.address),
        2,
        worker.params,
        environment=registry.load(DEMO),
        engine=engine,
    )
    assert [(slot.group, slot.sibling) for slot in slots] == [(g, s) for g in range(2) for s in range(4)]
    shared = (MANIFEST, 1, 3, worker.wallet.address, 7)
    assert [slot.request.seed for slot in slots] == [seed_by_hand(*shared, g, s) for g in range(2) for s in range(4)]
    environment = registry.load(DEMO)
    prompts = [environment.prompt(seed_by_hand(*shared, g)) for g in range(2) for _ in range(4)]
    assert [slot.prompt for slot in slots] == prompts
    for slot in slots:
        tokens = engine.tokenizer.encode(slot.prompt.text + "\n", add_special_tokens=False)
        assert slot.request.prompt == (2, *tokens)
        assert slot.request.max_tokens == 5


@pytest.mark.parametrize(
    "changes", [{"task": 8}, {"policy_version": 1}, {"record_hash": make_hash("other")}, {"lease": 10}]
)
def test_build_slots__another_task_version_or_manifest__changes_the_seeds_but_another_lease_does_not(
    worker: Worker, changes: dict[str, object]
):
    def seeds(task) -> set[int]:
        slots = rollouts.build_slots(
            build_domain(task, worker.wallet.address),
            task.groups,
            worker.params,
            environment=worker.environment,
            engine=worker.engine,
        )
        return {slot.request.seed for slot in slots}

    shared = seeds(make_task()) & seeds(make_task(**changes))
    assert len(shared) == (8 if "lease" in changes else 0)


def test_build_slots__prompt_beyond_the_limit__is_refused(worker: Worker):
    tight = Worker(
        worker.wallet,
        make_model_params(model={"max_prompt_tokens": 10, "max_completion_tokens": 5}),
        worker.engine,
    )
    with pytest.raises(ProtocolError) as caught:
        tight.work()
    assert caught.value.code == "prompt_too_long"


def test_roll_out__twice__gives_the_same_file(worker: Worker):
    """A worker that lost its file can generate the same one again."""
    assert worker.work().file == worker.work().file
