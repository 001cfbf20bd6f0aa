from types import SimpleNamespace

import pytest
from eth_account import Account

from covey.chain.wallet import save_key
from covey.environments.registry import DEMO, compute_fingerprint, load
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.network import entry
from covey.network.entry import Deployment, join
from covey.protocol.api.public import PoolView
from covey.protocol.params import EnvironmentParams, PoolParams
from covey.runtime.settings import RoleSettings
from tests.fakes.pool import make_deployment
from tests.fakes.tasks import make_data_set, make_row

pytestmark = pytest.mark.unit

ALICE = "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
COURT, LEDGER = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8", "0x3C44CdDdB6a900fa2b585dd299e03d12FA4293BC"
HASH = "0x" + "ab" * 32
DEPLOYMENT = make_deployment(start_hash=HASH)
PARAMS = PoolParams(
    name="p", environment=EnvironmentParams(kind="reasoning_gym", options={"name": "x"}), max_staleness=3
)


class Outside:
    """Fake chain and coordinator, whose answers a test can change."""

    def __init__(self, **changes):
        values = {
            "pool": 1,
            "params": PARAMS.to_text(),
            "params_hash": PARAMS.compute_hash(),
            "terms": {},
            "requirements": {
                "engine": "any",
                "compute_dtype": "float32",
                "hardware": "any",
                "execution_contracts": {},
                "max_tokens": 520,
            },
            "token": ALICE,
            "start_block": 0,
            "operator": ALICE,
            "signer": ALICE,
            "chain_id": 31337,
            "contracts": DEPLOYMENT.get_contracts(),
            "relays": ("http://relay:1",),
        }
        self.view = PoolView(**(values | changes))
        self.error = None
        self.closed = 0
        self.terms = SimpleNamespace(params_hash=PARAMS.compute_hash(), trainer=ALICE)
        self.policies = SimpleNamespace(address=LEDGER)

    async def get_pool(self):
        if self.error:
            raise self.error
        return self.view

    async def close(self):
        self.closed += 1

    def build_contracts(self, _chain, deployment):
        pools = SimpleNamespace(get_terms=lambda pool: self.terms, operator_of=lambda pool: ALICE)
        return SimpleNamespace(
            deployment=deployment,
            pools=pools,
            policies=self.policies,
            court=SimpleNamespace(address=COURT),
            ledger=SimpleNamespace(address=LEDGER),
        )


@pytest.fixture
def settings(tmp_path):
    save_key(tmp_path / "node.key", b"\x11" * 32)
    return RoleSettings(home=tmp_path / "home", pool=1, deployment=tmp_path / "d.json", key_file=tmp_path / "node.key")


@pytest.fixture
def install(monkeypatch):
    def make(**changes):
        outside = Outside(**changes)
        monkeypatch.setattr(Deployment, "load", lambda path: DEPLOYMENT)
        monkeypatch.setattr(entry, "open_node", lambda deployment, own: deployment.choose_node(own))
        monkeypatch.setattr(entry, "Contracts", outside.build_contracts)
        monkeypatch.setattr(entry, "CoordinatorClient", lambda url, wallet, chain_id, clock: outside)
        return outside

    return make


async def test_join__chain_and_coordinator_agree__network_is_complete(install, settings):
    outside = install()
    joined = await join(settings)
    assert joined.params == PARAMS
    assert joined.wallet.address == Account.from_key(b"\x11" * 32).address
    assert (joined.receipt_domain.contract, joined.receipt_domain.chain_id) == (COURT, 31337)
    assert joined.ledger_domain.contract == LEDGER
    assert (joined.environment.kind, joined.environment.options) == ("reasoning_gym", {"name": "x"})
    assert (settings.home / "policies").is_dir()
    assert [source.url for source in joined.policies._client.source.downloader.sources] == ["http://relay:1"]
    await joined.close()
    assert outside.closed == 1


async def join_demo(install, settings, fingerprint):
    environment = EnvironmentParams(kind=DEMO.kind, options=DEMO.options, fingerprint=fingerprint)
    params = PoolParams(name="p", environment=environment)
    outside = install(params=params.to_text())
    outside.terms.params_hash = params.compute_hash()
    return await join(settings)


async def test_load_environment__prompts_of_the_pool__is_loaded(install, settings):
    joined = await join_demo(install, settings, compute_fingerprint(load(DEMO)))
    assert joined.load_environment().prompt(5) == load(DEMO).prompt(5)
    await joined.close()


async def test_load_environment__library_of_another_version__stops_the_process(install, settings):
    joined = await join_demo(install, settings, HASH)
    with pytest.raises(OperatorError, match="environment_differs"):
        joined.load_environment()
    await joined.close()


async def test_load_environment__pool_without_a_fingerprint__is_loaded(install, settings):
    joined = await join_demo(install, settings, None)
    assert joined.load_environment().prompt(5) == load(DEMO).prompt(5)
    await joined.close()


async def test_join__relays_in_the_settings__take_precedence(install, settings):
    install()
    joined = await join(settings.model_copy(update={"relays": ("http://mine:1/",)}))
    assert [source.url for source in joined.policies._client.source.downloader.sources] == ["http://mine:1"]
    await joined.close()


@pytest.mark.parametrize(
    ("changes", "error", "code"),
    [
        ({"pool": 2}, OperatorError, "wrong_pool"),
        ({"relays": ()}, TransientError, "no_relays"),
        ({"params": PARAMS.to_text() + " "}, ProtocolError, "bad_params"),
        (
            {"params": PoolParams(name="q", environment=EnvironmentParams(kind="k")).to_text()},
            ProtocolError,
            "bad_params",
        ),
    ],
)
async def test_join__coordinator_contradicts_the_chain__is_refused_and_closed(install, settings, changes, error, code):
    outside = install(**changes)
    with pytest.raises(error, match=code):
        await join(settings)
    assert outside.closed == 1


async def test_join__coordinator_does_not_answer__is_transient_and_closed(install, settings):
    outside = install()
    outside.error = TransientError("coordinator_unreachable", "x")
    with pytest.raises(TransientError):
        await join(settings)
    assert outside.closed == 1


async def join_data_set(install, settings, digest, **options):
    params = PoolParams(name="p", environment=EnvironmentParams(kind="math", options={"dataset": digest}))
    outside = install(params=params.to_text(), relays=("http://127.0.0.1:9",))
    outside.terms.params_hash = params.compute_hash()
    return outside, await join(settings, **options)


async def test_join__data_set_in_a_folder__is_used_by_the_environment(install, settings, tmp_path):
    data_set = make_data_set(tmp_path / "tasks", [make_row(n) for n in range(9)])
    local = settings.model_copy(update={"datasets": (tmp_path / "tasks",)})
    _, joined = await join_data_set(install, local, data_set.digest)
    assert joined.data_sets.digests == [data_set.digest]
    assert joined.load_environment().prompt(3).text.startswith("What is ")
    await joined.close()


async def test_join__no_relay_has_the_data_set_yet__is_transient_except_for_the_trainer(install, settings):
    with pytest.raises(TransientError, match="no_relay"):
        await join_data_set(install, settings, HASH)
    _, joined = await join_data_set(install, settings, HASH, opens_data_sets=False)
    await joined.close()


async def test_join__data_set_folder_is_missing__stops_the_process(install, settings, tmp_path):
    wrong = settings.model_copy(update={"datasets": (tmp_path / "gone",)})
    with pytest.raises(OperatorError, match="no_dataset"):
        await join_data_set(install, wrong, HASH)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"start_hash": "0x" + "cd" * 32}, f"start_hash is 0x{'cd' * 32} at the coordinator, but {HASH} in"),
        ({"chain_id": 5}, "chain_id is 5 at the coordinator, but 31337 in"),
    ],
)
async def test_join__coordinator_of_another_chain_on_the_same_port__is_refused(install, settings, changes, what):
    outside = install(**changes)
    with pytest.raises(OperatorError, match=f"other_contracts: .*{what}"):
        await join(settings)
    assert outside.closed == 1
