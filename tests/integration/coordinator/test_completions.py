"""Completions on pages: read from the store, decoded in a sandbox, and shown as text with the pool's tokenizer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.pages.completions import Completions
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
    assert (shown.tokens, shown.sibling, shown.finished) == (len(tokens), 1, True)


async def test_read__no_tokenizer__shows_numbers(pool: FakePool, tmp_path: Path):
    ctx = make_pages_context(pool, tmp_path)
    file = encode([make_row((9, 8))])
    ctx.store.put_named_by_content(build_submission_key(1, 3, 7, sha256(file)), file)
    (shown,) = await Completions(ctx).read(task=3, lease=7, work_key=sha256(file))
    assert (shown.question, shown.answer) == ("72 105", "9 8")


@pytest.mark.parametrize(("file", "code"), [(None, "no_file"), (b"PAR1 nonsense PAR1", "malformed")])
async def test_read__missing_or_broken_file__has_a_code(pool: FakePool, tmp_path: Path, file: bytes | None, code: str):
    ctx = make_pages_context(pool, tmp_path)
    key = make_hash("nothing") if file is None else sha256(file)
    if file is not None:
        ctx.store.put_named_by_content(build_submission_key(1, 3, 7, key), file)
    with pytest.raises(ProtocolError) as caught:
        await Completions(ctx).read(task=3, lease=7, work_key=key)
    assert caught.value.code == code
