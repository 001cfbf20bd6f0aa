"""Reads runs for their pages. What was read is kept until a file changes, so that polling costs little."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from typing import Any, NamedTuple

from pydantic import ValidationError

from covey.errors import ProtocolError
from covey.standalone import manifest as manifests
from covey.standalone import run_lock
from covey.standalone.manifest import RunManifest
from covey.standalone.run_settings import describe_manifest, find_thinking_tags
from covey.ui.run_folders import RunFolders, Stamp
from covey.ui.run_views import (
    ChartTable,
    RunNumbers,
    RunSummary,
    RunView,
    ShownSample,
    compare_runs,
    find_newest,
    find_setting_differences,
    list_charts,
    show_sample,
    summarize,
    thin,
)
from trainer.monitoring.rollout_files import FOLDER
from trainer.monitoring.run_history import METRICS_FILE, RunHistory, parse_history, parse_samples

METRICS_BYTES, NEWEST_BYTES = 16 << 20, 256 << 10
"""Maximum size of the end of a metrics file that a run's page, and the list of runs, are made of."""
SAMPLES_BYTES, MANIFEST_BYTES = 4 << 20, 4 << 20
MAX_COMPARED = 8
"""Maximum number of runs in a comparison."""
_KEPT = 2 * MAX_COMPARED


class SamplePage(NamedTuple):
    """Completions of one step, and the steps before and after it that have some, too."""

    step: int
    samples: Sequence[ShownSample]
    problems: Sequence[str]
    earlier: int | None
    later: int | None


class Comparison(NamedTuple):
    """Several runs on the same charts, and the settings in which they differ."""

    summaries: Sequence[RunSummary]
    charts: Sequence[ChartTable]
    differences: Sequence[tuple[str, Sequence[str]]]


class RunReader:
    """Example: `RunReader(RunFolders(Path("runs"))).read_run("first").charts`."""

    def __init__(self, folders: RunFolders, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns Unix time in seconds."""
        self._folders, self._clock, self._reading = folders, clock, Lock()
        self._newest: dict[str, tuple[Stamp, RunNumbers]] = {}
        self._histories: OrderedDict[str, tuple[Stamp, RunHistory]] = OrderedDict()
        self._manifests: dict[str, tuple[Stamp, RunManifest | None]] = {}

    def list_runs(self) -> tuple[list[RunSummary], Sequence[str]]:
        """Return all runs, the newest first, and what is not listed."""
        with self._reading:
            names, problems = self._folders.list_runs()
            for kept in (self._newest, self._manifests):
                for gone in kept.keys() - {*names}:
                    del kept[gone]
            return [self._summarize(name) for name in names], problems

    def read_run(self, name: str) -> RunView:
        """Return a run. Raises ProtocolError("no_run") if there is none with the name."""
        with self._reading:
            self._require_run(name)
            manifest, history = self._read_manifest(name), self._read_history(name)
            missing = self._folders.read_stamp(name, manifests.FILE) is not None and manifest is None
            damaged = [f"{manifests.FILE} is not a manifest of covey train."] if missing else []
            return RunView(
                summary=self._summarize(name),
                charts=list_charts(history),
                alarms=history.alarms,
                problems=[*history.problems, *damaged],
                settings=describe_manifest(manifest) if manifest else [],
                sample_steps=self._folders.list_sample_steps(name),
            )

    def read_samples(self, name: str, step: int | None) -> SamplePage:
        """Return the completions of a step, or of the newest one.

        Raises ProtocolError("no_run"), and ProtocolError("no_completions") if the step has none.
        """
        with self._reading:
            self._require_run(name)
            steps, manifest = self._folders.list_sample_steps(name), self._read_manifest(name)
            if not steps or (step is not None and step not in steps):
                known = f"Steps from {steps[0]} to {steps[-1]} have some" if steps else "The run has written none yet"
                asked = "" if step is None else f" of step {step}"
                raise ProtocolError("no_completions", f"There are no completions{asked}. {known}.", status=404)
            shown = steps[-1] if step is None else step
            try:
                piece = self._folders.read_start(name, FOLDER, f"{shown}.jsonl", most=SAMPLES_BYTES)
            except OSError as error:
                message = f"{shown}.jsonl cannot be read: {_explain(error)}."
                raise ProtocolError("no_completions", message, status=404) from error
        lines, problems = parse_samples(piece.data, shown)
        cut = [] if piece.is_whole else [f"Only the first {SAMPLES_BYTES >> 20} MiB of {shown}.jsonl are shown."]
        tags, place = find_thinking_tags(manifest.params if manifest else None), steps.index(shown)
        return SamplePage(
            step=shown,
            samples=[show_sample(line, tags) for line in lines],
            problems=[*cut, *problems],
            earlier=steps[place - 1] if place else None,
            later=steps[place + 1] if place + 1 < len(steps) else None,
        )

    def compare(self, names: Sequence[str]) -> Comparison:
        """Return runs on the same charts.

        Raises ProtocolError("no_run"), and ProtocolError("too_many_runs") above MAX_COMPARED.
        """
        names = [*dict.fromkeys(names)]
        if not names or len(names) > MAX_COMPARED:
            message = f"{len(names)} runs are chosen. Choose 1 to {MAX_COMPARED} runs in the list."
            raise ProtocolError("too_many_runs" if names else "no_run", message, status=404)
        with self._reading:
            for name in names:
                self._require_run(name)
            histories = {name: self._read_history(name) for name in names}
            settings: Mapping[str, Mapping[str, Any]] = {
                name: found.settings if (found := self._read_manifest(name)) else {} for name in names
            }
            summaries = [self._summarize(name) for name in names]
        return Comparison(summaries, compare_runs(histories), find_setting_differences(settings))

    def compute_version(self, names: Sequence[str] | None = None) -> str:
        """Return a text that changes whenever the page of these runs, or that of all runs, does."""
        with self._reading:
            names = self._folders.list_runs().names if names is None else names
            files = (METRICS_FILE, manifests.FILE)  # completions of a step are written before its metrics
            states = [
                (name, self._is_running(name), *(self._folders.read_stamp(name, file) for file in files))
                for name in names
            ]
        return hashlib.sha256(repr(states).encode()).hexdigest()[:16]

    def _require_run(self, name: str) -> None:
        if not self._folders.is_run(name):
            raise ProtocolError("no_run", f"There is no run {name[:200]} in the folder.", status=404)

    def _is_running(self, name: str) -> bool:
        try:
            with self._folders.open_file(name, run_lock.FILE) as descriptor:
                return run_lock.is_held(descriptor)
        except OSError:  # a run of an older version, or a trainer of a pool
            return False

    def _summarize(self, name: str) -> RunSummary:
        stamp = self._folders.read_stamp(name, METRICS_FILE)
        return summarize(
            name,
            self._read_manifest(name),
            self._read_newest(name, stamp),
            is_running=self._is_running(name),
            written_at=None if stamp is None else stamp.changed_ns / 1e9,
            now=self._clock(),
        )

    def _read_newest(self, name: str, stamp: Stamp | None) -> RunNumbers:
        kept = self._newest.get(name)
        if kept is None or kept[0] != stamp:
            try:
                piece = self._folders.read_end(name, METRICS_FILE, most=NEWEST_BYTES)
            except OSError:
                return RunNumbers(None, None, None, None)
            kept = self._newest[name] = (piece.stamp, find_newest(parse_history(piece.data)))
        return kept[1]

    def _read_history(self, name: str) -> RunHistory:
        stamp = self._folders.read_stamp(name, METRICS_FILE)
        kept = self._histories.get(name)
        if kept is None or kept[0] != stamp:
            try:
                piece = self._folders.read_end(name, METRICS_FILE, most=METRICS_BYTES)
            except OSError as error:
                return parse_history(b"", [f"{METRICS_FILE} cannot be read: {_explain(error)}."])
            cut = f"Only the newest {METRICS_BYTES >> 20} MiB of {METRICS_FILE} are shown."
            history = parse_history(piece.data, [] if piece.is_whole else [cut])
            kept = self._histories[name] = (piece.stamp, thin(history))
        self._histories.move_to_end(name)
        while len(self._histories) > _KEPT:
            self._histories.popitem(last=False)
        return kept[1]

    def _read_manifest(self, name: str) -> RunManifest | None:
        """Return the manifest of a run. None if it has none that can be read."""
        stamp = self._folders.read_stamp(name, manifests.FILE)
        if stamp is None:
            return None
        kept = self._manifests.get(name)
        if kept is None or kept[0] != stamp:
            found = None
            try:
                piece = self._folders.read_whole(name, manifests.FILE, most=MANIFEST_BYTES)
                found = RunManifest.model_validate_json(piece.data)
            except (OSError, ValidationError):
                pass
            kept = self._manifests[name] = (stamp, found)
        return kept[1]


def _explain(error: OSError) -> str:
    return error.strerror or "unknown error"
