"""`covey watch`: check a pool from outside, keep the proofs of one account, and do what is due for it."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from covey.console import options
from covey.console.options import DeploymentFile, FolderSource, Json, OptionalCoordinatorUrl, OptionalKeyFile, Pool
from covey.console.terminal import quote
from covey.errors import OperatorError, ProtocolError, TransientError

if TYPE_CHECKING:
    from covey.console.account import Account
    from covey.console.pool_watcher import PoolWatcher
    from covey.console.webhook import Webhook
    from covey.network.watch_steps import WatchStep


def watch(
    deployment: DeploymentFile,
    pool: Pool,
    key_file: OptionalKeyFile = None,
    coordinator_url: OptionalCoordinatorUrl = None,
    contributor: Annotated[
        str | None, typer.Option(help="Address to watch for, without a key. By default that of --key-file.")
    ] = None,
    act: Annotated[
        bool, typer.Option("--act", help="Send the transactions that are due. By default they are only named.")
    ] = False,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Look once. The exit code is 1 if an epoch is false, its file missing, or a receipt is paid wrongly.",
        ),
    ] = False,
    every: Annotated[float, typer.Option(min=1.0, help="Seconds between two looks.")] = 30.0,
    webhook: Annotated[
        str | None, typer.Option(help="URL that gets each new line as JSON, by POST. It must be one that you trust.")
    ] = None,
    folder: FolderSource = None,
    as_json: Json = False,
) -> None:
    """Watch a pool: compute every epoch again, keep its file and your proofs, and say what is due.

    Due are: the claim of what is final, a challenge of the operator for an overdue receipt, its resolution, the ether
    of upheld challenges, credits that the token refused to pay, the execution of cases, the slash of validators whose
    verdicts a case refuted or that attested a false epoch, and of nodes that signed two files for one lease. For an
    arbiter, the end of a false epoch is due too. Each costs gas, and a challenge needs a bond; nothing is sent without
    --act.

    Example: `covey watch myworker --act`
    """
    from covey.console.addresses import read_address
    from covey.console.pool_watcher import PoolWatcher

    account = options.open_account(deployment, None if contributor else key_file, pool, folder=folder)
    if contributor is None and key_file is None:
        raise OperatorError(
            "no_key",
            "it is unknown for which account to watch, because neither --contributor nor --key-file is set",
            fix="Add --contributor ADDRESS or --key-file FILE",
        )
    if act and contributor is not None:
        raise OperatorError(
            "no_key", "--act signs transactions, but --contributor has no key", fix="Use --key-file instead"
        )
    who = read_address(contributor) if contributor else account.wallet.address
    watcher = PoolWatcher(account, who, coordinator_url=coordinator_url, folder=folder or Path())
    with _stop_on_terminate() as stop, _open_webhook(webhook) as queue:
        say = _build_say(as_json=as_json, webhook=queue)
        _Watch(account, watcher, act=act, say=say).run(once=once, every=every, stop=stop)


class _Watch:
    """Says each thing once, and sends what is due in every look until it is no longer due."""

    def __init__(
        self, account: "Account", watcher: "PoolWatcher", *, act: bool, say: "Callable[[dict[str, Any]], None]"
    ) -> None:
        self._account, self._watcher, self._act, self._say = account, watcher, act, say
        self._said: set[str] = set()

    def run(self, *, once: bool, every: float, stop: threading.Event) -> None:
        """Look until `stop` is set, or once."""
        while not stop.is_set():
            try:
                is_sound = self._look()
            except (TransientError, ProtocolError) as error:
                if once:
                    raise
                self._tell({"event": "waiting", "code": error.code, "text": error.message})
            else:
                if once:
                    raise typer.Exit(0 if is_sound else 1)
            stop.wait(every)

    def _look(self) -> bool:
        """Return whether all epochs are true, and pay the account's receipts."""
        from covey.network.watch_steps import is_sound, list_reports, list_steps

        seen = self._watcher.look()
        for step in list_steps(seen):  # They come first: a disabled epoch or a challenge has a deadline.
            self._take(step)
        for report in list_reports(seen):
            self._tell(report)
        return is_sound(seen)

    def _take(self, step: "WatchStep") -> None:
        about: dict[str, Any] = {"event": step.verb.value, "about": step.about}
        if not self._act:
            self._tell(about | {"code": "due", "text": f"due: {step.verb.value}, because {step.text}"})
            return
        try:
            entry = self._account.send(self._watcher.build_call(step))
        except (TransientError, ProtocolError, OperatorError) as error:
            text = f"{step.verb.value} was refused and is tried again: {error.message}"
            self._tell(about | {"code": error.code, "text": text})
            return
        text = f"{step.verb.value}, because {step.text}"
        self._tell(about | {"code": "sent", "text": text, "transaction": entry.transaction_hash})

    def _tell(self, values: dict[str, Any]) -> None:
        key = json.dumps(values, sort_keys=True)
        if key not in self._said:
            self._said.add(key)
            self._say(values | {"time": int(time.time())})


def _build_say(*, as_json: bool, webhook: "Webhook | None") -> "Callable[[dict[str, Any]], None]":
    def say(values: dict[str, Any]) -> None:
        line = json.dumps(values, sort_keys=True)
        text = "  ".join(str(values[name]) for name in ("text", "transaction") if name in values)
        typer.echo(line if as_json else quote(text))
        if webhook is not None:
            webhook.put(line)

    return say


@contextmanager
def _open_webhook(url: str | None) -> "Iterator[Webhook | None]":
    """Open the queue of a webhook. What is not delivered is named on standard error, and is not sent again."""
    from covey.console.webhook import Webhook

    if url is None:
        yield None
        return
    with Webhook(url, report=lambda text: typer.echo(quote(text), err=True)) as webhook:
        yield webhook


@contextmanager
def _stop_on_terminate() -> "Iterator[threading.Event]":
    """Yield an event that SIGTERM sets, so that a look that has begun ends and the webhook gets its lines."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)
