"""The command `covey`, whose entry point is `main`.

Each group of commands has its own module and imports its dependencies late, so that `covey --help` is fast.
"""

import os
import sys
from typing import Annotated

import typer

import covey
from coordinator.cli import coordinator
from covey.cli import (
    cheat_command,
    config,
    dataset_commands,
    demo_command,
    devnet,
    disputes,
    epoch_commands,
    eval_command,
    filter_command,
    governance,
    init_commands,
    join,
    leave,
    market_command,
    model_commands,
    payouts,
    policy_commands,
    pool,
    pool_changes,
    pool_end,
    pool_open,
    pool_pause,
    registry_commands,
    report_command,
    rewards,
    rollouts_command,
    stake,
    status_command,
    submission_commands,
    train_command,
    ui_command,
    up_down,
    wallet_commands,
    watch_command,
)
from covey.cli.doctor import doctor
from covey.cli.relays import origin, relay
from covey.console.terminal import quote
from covey.errors import CoveyError, TransientError
from trainer.cli import trainer
from validator import audit_command, calibrate_command
from validator.cli import validator
from worker.cli import worker

app = typer.Typer(
    name="covey",
    help="Train language models by reinforcement learning on computers that nobody has to trust.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"covey {covey.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Train language models by reinforcement learning on computers that nobody has to trust."""


app.add_typer(devnet.devnet, name="devnet")
app.add_typer(wallet_commands.wallet, name="wallet")
app.add_typer(model_commands.model, name="model")
app.add_typer(pool.pool, name="pool")
app.add_typer(market_command.market, name="market")
pool.pool.command("open")(pool_open.pool_open)
pool.pool.command("announce")(pool_open.pool_announce)
pool.pool.command("list")(market_command.list_pools_of_chain)
pool.pool.command("pause")(pool_pause.pool_pause)
pool.pool.command("resume")(pool_pause.pool_resume)
pool.pool.command("end")(pool_end.pool_end)
pool.pool.command("refund")(pool_end.pool_refund)
pool.pool.command("price")(pool_changes.pool_price)
pool.pool.command("rotate")(pool_changes.pool_rotate)
pool.pool.command("heir")(pool_changes.pool_heir)
app.add_typer(filter_command.tasks, name="tasks")
filter_command.tasks.command("import")(dataset_commands.tasks_import)
filter_command.tasks.command("check")(dataset_commands.tasks_check)
filter_command.tasks.command("show")(dataset_commands.tasks_show)
filter_command.tasks.command("select")(dataset_commands.tasks_select)
filter_command.tasks.command("example")(dataset_commands.tasks_example)
app.add_typer(stake.stake, name="stake")
app.add_typer(rewards.rewards, name="rewards")
app.add_typer(submission_commands.submissions, name="submissions")
app.add_typer(rollouts_command.rollouts, name="rollouts")
app.add_typer(policy_commands.policy, name="policy")
governance.epoch.command("sign")(epoch_commands.epoch_sign)
governance.epoch.command("post")(epoch_commands.epoch_post)
app.add_typer(governance.epoch, name="epoch")
app.add_typer(governance.case, name="case")
app.add_typer(coordinator, name="coordinator")
app.add_typer(worker, name="worker")
app.add_typer(validator, name="validator")
app.add_typer(trainer, name="trainer")
app.add_typer(origin, name="origin")
app.add_typer(relay, name="relay")
rewards.rewards.command("challenge")(disputes.rewards_challenge)
rewards.rewards.command("resolve")(disputes.rewards_resolve)
rewards.rewards.command("withdraw-ether")(disputes.rewards_withdraw_ether)
rewards.rewards.command("payee")(payouts.rewards_payee)
rewards.rewards.command("withdraw-credit")(payouts.rewards_withdraw_credit)
governance.case.command("equivocation")(disputes.case_equivocation)
governance.case.command("slash-signer")(disputes.case_slash_signer)
governance.case.command("slash-accept")(disputes.case_slash_accept)
worker.command("leave")(leave.worker_leave)
worker.command("cheat", hidden=True)(cheat_command.worker_cheat)
validator.command("audit")(audit_command.validator_audit)
validator.command("calibrate")(calibrate_command.validator_calibrate)
app.add_typer(registry_commands.registry, name="registry")
app.add_typer(config.config, name="config")
app.add_typer(init_commands.init, name="init")
app.command("up")(up_down.up)
app.command("down")(up_down.down)
app.command("join")(join.join)
app.command("deploy")(init_commands.deploy)
app.command("train")(train_command.train)
app.command("status")(status_command.status)
app.command("watch")(watch_command.watch)
app.command("report")(report_command.report)
app.command("ui")(ui_command.ui)
app.command("demo")(demo_command.demo)
app.command("doctor")(doctor.doctor)
app.command("eval")(eval_command.evaluate_models)


def main() -> None:
    """Run a command. A CoveyError is printed as one line with its code.

    The exit code is then 1, or os.EX_TEMPFAIL (75) for a TransientError, after which `covey up` tries again.
    """
    try:
        app()
    except CoveyError as error:
        sys.stderr.write(f"covey: {quote(str(error))}\n")
        sys.exit(os.EX_TEMPFAIL if isinstance(error, TransientError) else 1)
