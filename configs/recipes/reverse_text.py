"""Reward of reverse-text.toml: how much of the reversed text a completion has, from 0 to 1."""

import re
from collections.abc import Mapping
from difflib import SequenceMatcher
from typing import Any

ANSWER = re.compile(r"<reversed_text>(.*?)</reversed_text>", re.DOTALL)


def reward(completion: str, row: Mapping[str, Any]) -> float:
    """Return the similarity of the text between the tags and the reversed prompt. It is 0 without the tags."""
    found = ANSWER.search(completion)
    return 0.0 if found is None else SequenceMatcher(None, found.group(1).strip(), row["prompt"][::-1]).ratio()
