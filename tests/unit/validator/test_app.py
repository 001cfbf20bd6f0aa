"""The validator's composition root: who may judge, and how the tools are built."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from covey.chain.structs import BondKind
from covey.devnet import deploy
from covey.environments.registry import DEMO, load
from covey.errors import OperatorError
from covey.runtime.cycle import CycleResult
from covey.sandbox.isolation import describe
from tests.fakes.grading import grade_here
from tests.fakes.tools import DOMAIN, make_model_params
from validator import app, enforcement, epoch_signing, loop
from validator.config import ValidatorConfig

pytestmark = pytest.mark.unit
LOOPS = {"polling", "judging", "enforcing", "watching", "signing"}
WALLET = deploy.derive_wallet("test", "validator-0")


class Recording:
    """A sandbox that records how many attempts it is allowed."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.attempts = answer, []
        self.isolation = describe("bwrap")

    def call(self, payload: bytes, *, attempts: int = 1) -> bytes:
        self.attempts.append(attempts)
        return self.answer


def build(tmp_path, *, named: bool = True, bond: int = 50, window: int = 20):
    params = make_model_params()
    network = SimpleNamespace(
        pool=1,
        params=params,
        wallet=WALLET,
        chain=None,
        policies=None,
        receipt_domain=DOMAIN,
        contracts=SimpleNamespace(
            deployment=None,
            pools=SimpleNamespace(is_validator=lambda pool, who: named),
            stakes=SimpleNamespace(stake_of=lambda pool, kind, who: bond if kind is BondKind.VALIDATOR else 0),
        ),
        terms=SimpleNamespace(validator_bond=50, unbond_window=window, params_hash=params.compute_hash()),
    )
    config = ValidatorConfig(home=tmp_path, pool=1, deployment=tmp_path / "d", key_file=tmp_path / "k", threads=1)
    decoder = Recording(b"[]")
    tools = {"environment": load(DEMO), "decoder": decoder, "grade": grade_here}
    return app.build(config, network, **tools, stop=asyncio.Event()), decoder


def test_build__tools__are_the_pools_and_retry_after_one_slow_child(tmp_path):
    ctx, decoder = build(tmp_path)
    assert ctx.tools.environment.prompt(5) == load(DEMO).prompt(5)
    assert ctx.tools.domain == DOMAIN
    assert ctx.tools.decode(b"file") == b"[]"
    assert ctx.tools.grade is grade_here
    assert ctx.venue.isolation == "bwrap"
    assert decoder.attempts == [2]
    assert (ctx.venue.chain_id, ctx.venue.court, ctx.venue.pool) == (DOMAIN.chain_id, DOMAIN.contract, 1)
    assert (ctx.venue.params_hash, ctx.venue.engine.batch) == (make_model_params().compute_hash(), 32)
    ctx.outbox.close()
    ctx.verdicts.close()


@pytest.mark.parametrize("failing", ["build", *sorted(LOOPS)])
def test_run__something_fails__closes_everything_after_all_loops_have_ended(
    tmp_path, monkeypatch: pytest.MonkeyPatch, failing: str
):
    done: list[str] = []

    async def close_network() -> None:
        done.append("network")

    network = SimpleNamespace(
        wallet=WALLET,
        close=close_network,
        params=make_model_params(),
        load_environment=lambda: load(DEMO),
        chain=SimpleNamespace(metrics=()),
        terms=SimpleNamespace(header_quorum=2),
    )
    tools = SimpleNamespace(engine=SimpleNamespace(close=lambda: done.append("engine")), contract="")
    config = ValidatorConfig(home=tmp_path, pool=1, deployment=tmp_path / "d", key_file=tmp_path / "k")
    ctx = SimpleNamespace(
        config=config,
        network=network,
        tools=tools,
        outbox=SimpleNamespace(close=lambda: done.append("outbox")),
        verdicts=SimpleNamespace(close=lambda: done.append("verdicts")),
    )

    async def join(_: ValidatorConfig) -> SimpleNamespace:
        return network

    def build(*_: object, **__: object) -> SimpleNamespace:
        if failing == "build":
            raise OperatorError("bond_too_small", "no bond", fix="Bond")
        return ctx

    def build_cycle(name: str):
        async def cycle(_: SimpleNamespace) -> CycleResult:
            await asyncio.sleep(0.01)
            if failing == name:
                raise OperatorError("bad_config", f"{name} fails", fix="Mend it")
            await asyncio.sleep(0.05)
            done.append(name)
            return CycleResult.IDLE

        return cycle

    monkeypatch.setattr(app, "build_decoder", lambda _: nullcontext())
    monkeypatch.setattr(app, "build_grader", lambda *_: nullcontext())
    monkeypatch.setattr(app, "join", join)
    monkeypatch.setattr(app, "build", build)
    monkeypatch.setattr(loop, "poll", build_cycle("polling"))
    monkeypatch.setattr(loop, "judge_next", build_cycle("judging"))
    monkeypatch.setattr(enforcement, "cycle", build_cycle("enforcing"))
    monkeypatch.setattr(enforcement, "watch_power", build_cycle("watching"))
    signing = build_cycle("signing")
    monkeypatch.setattr(epoch_signing.Attester, "cycle", lambda self, ctx: signing(ctx))
    with pytest.raises(OperatorError):
        asyncio.run(app._run(config))
    if failing == "build":
        assert done == ["network"]
    else:
        assert (set(done[:4]), done[4:]) == (LOOPS - {failing}, ["engine", "outbox", "verdicts", "network"])


def test_build__key_that_the_chain_does_not_name__is_refused(tmp_path):
    with pytest.raises(OperatorError, match="not_a_validator"):
        build(tmp_path, named=False)


def test_build__bond_that_the_court_finds_too_small__says_how_much_to_add(tmp_path):
    with pytest.raises(OperatorError, match=r"bond_too_small.*Run covey stake add 1 --raw --kind validator"):
        build(tmp_path, bond=49)


@pytest.mark.parametrize(("window", "is_taken"), [(604_800, True), (604_801, False)])
def test_build__verdicts_that_expire_before_the_next_span__are_refused_with_the_number(tmp_path, window, is_taken):
    """The default of 691,200 s covers the seven days of a public pool plus the day in which a case is proposed."""
    if is_taken:
        build(tmp_path, window=window)
        return
    with pytest.raises(
        OperatorError, match=r"short_verdicts: .* is 691200, but pool 1 requires at least 691201.* Set verdict_seconds"
    ):
        build(tmp_path, window=window)
