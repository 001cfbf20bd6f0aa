"""Completions on pages: read from the store, decoded in a sandbox, and shown as text with the pool's tokenizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.pages.completions import Completions
from coordinator.pages.templates_engine import render
from covey.environments.environment import LENGTH_REQUEST
from covey.errors import ProtocolError
from covey.model.policy_files import load_tokenizer
from covey.model.tiny import tiny_folder
from covey.protocol.canonical import sha256
from covey.protocol.object_keys import build_submission_key
from covey.protocol.submission_file.codec import encode
from covey.protocol.submission_file.rows import Rollout
from tests.fakes.databases import open_sqlite
from tests.fakes.pages import make_pages_context
from tests.fakes.pool import FakePool, make_hash, make_params

pytestmark = pytest.mark.integration


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[FakePool]:
    with open_sqlite(tmp_path / "rows.sqlite3") as database:
        yield FakePool(database, make_params(model={"max_completion_tokens": 64}))


def make_row(tokens: tuple[int, ...], **changes: Any) -> Rollout:
    values: dict[str, Any] = {"group": 0, "sibling": 1, "seed": 5, "prompt": (72, 105), "tokens": tokens}
    values |= {"logprobs": (-0.5,) * len(tokens), "proofs": (b"",), "finished": True, "reward": 1.0}
    return Rollout(**(values | changes))


async def test_read__a_file_with_thinking__folds_it(pool: FakePool, tmp_path: Path):
    tokenizer = load_tokenizer(tiny_folder())
    tokens = tuple(tokenizer.encode("<think>so</think>olleh", add_special_tokens=False))
    ctx = make_pages_context(pool, tmp_path, pages_tokenizer=str(tiny_folder()))
    file = encode([make_row(tokens)])
    ctx.store.put_named_by_content(build_submission_key(1, 3, 7, sha256(file)), file)
    (shown,) = await Completions(ctx).read(task=3, lease=7, work_key=sha256(file))
    assert (shown.thinking, shown.answer, shown.reward) == ("<think>so</think>", "olleh", 1.0)
    assert (shown.task_reward, shown.length_reward) == (1.0, 0.0)
    assert (shown.tokens, shown.sibling, shown.finished) == (len(tokens), 1, True)


async def test_read__prompt_with_a_target_length__splits_the_reward(tmp_path: Path):
    """The prompt asks for 10 tokens and the completion has 5, so 5 x 0.01 of its reward is lost."""
    options = {"name": "spell_backward", "targets": [10], "alpha": 0.01}
    tokenizer = load_tokenizer(tiny_folder())
    text = LENGTH_REQUEST.format(target=10)
    prompt, tokens = (tuple(tokenizer.encode(each, add_special_tokens=False)) for each in (text, "olleh"))
    assert len(tokens) == 5
    with open_sqlite(tmp_path / "rows.sqlite3") as database:
        pool = FakePool(database, make_params(environment={"kind": "reasoning_gym", "options": options}))
        ctx = make_pages_context(pool, tmp_path, pages_tokenizer=str(tiny_folder()))
        file = encode([make_row(tokens, prompt=prompt, reward=0.95)])
        ctx.store.put_named_by_content(build_submission_key(1, 3, 7, sha256(file)), file)
        found = await Completions(ctx).read(task=3, lease=7, work_key=sha256(file))
    assert (found[0].task_reward, found[0].length_reward) == (1.0, -0.05)
    assert (
        "reward 0.950 (task 1.000, length -0.050), 5 tokens"
        in render("completions.html", completions=found, has_text=True).decode()
    )


async def test_read__no_tokenizer__shows_numbers(pool: FakePool, tmp_path: Path):
    ctx = make_pages_context(pool, tmp_path)
    file = encode([make_row((9, 8))])
    ctx.store.put_named_by_content(build_submission_key(1, 3, 7, sha256(file)), file)
    (shown,) = await Completions(ctx).read(task=3, lease=7, work_key=sha256(file))
    assert (shown.question, shown.answer) == ("72 105", "9 8")
    assert (shown.task_reward, shown.length_reward) == (None, None)  # no text names a target length


@pytest.mark.parametrize(("file", "code"), [(None, "no_file"), (b"PAR1 nonsense PAR1", "malformed")])
async def test_read__missing_or_broken_file__has_a_code(pool: FakePool, tmp_path: Path, file: bytes | None, code: str):
    ctx = make_pages_context(pool, tmp_path)
    key = make_hash("nothing") if file is None else sha256(file)
    if file is not None:
        ctx.store.put_named_by_content(build_submission_key(1, 3, 7, key), file)
    with pytest.raises(ProtocolError) as caught:
        await Completions(ctx).read(task=3, lease=7, work_key=key)
    assert caught.value.code == code
