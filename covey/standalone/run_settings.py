"""The settings of a run as tables, and what its parameters say about how a completion is shown."""

import json
from collections.abc import Mapping
from typing import Any

from covey.environments.answer_extraction import THINK_TAGS, read_tags
from covey.runtime.flat_tables import flatten
from covey.standalone.manifest import RunManifest
from trainer.monitoring.run_page import SettingsTable


def describe_manifest(manifest: RunManifest) -> list[SettingsTable]:
    """Return tables of what determined a run: the run itself, its settings, and its parameters."""
    values = manifest.model_dump(mode="json", exclude={"machine", "settings", "params"})
    return [
        SettingsTable(title="Run", rows=list_rows(values | manifest.machine.model_dump())),
        SettingsTable(title="Settings of covey train", rows=list_rows(manifest.settings)),
        SettingsTable(title="Parameters", rows=list_rows(manifest.params)),
    ]


def list_rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names with their sections, and values as text."""
    return [(name, spell(value)) for name, value in flatten(values).items()]


def spell(value: Any) -> str:
    """Return a value of a setting as text."""
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def find_thinking_tags(params: Any) -> tuple[str, str]:
    """Return the tags of the thinking part of completions, from parameters of a run that may be damaged."""
    match params:
        case {"environment": {"options": options}}:
            return read_tags(options)
    return THINK_TAGS
