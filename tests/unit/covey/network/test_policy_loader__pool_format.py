"""A pool's policy is rejected if its chat template or its end tokens differ from those that the pool pins."""

from pathlib import Path

import pytest

from covey.engines.base import GenerationRequest
from covey.engines.hf.engine import HuggingFaceEngine
from covey.errors import OperatorError, ProtocolError
from covey.model.prompts import PromptFormat, encode_prompt
from covey.model.tiny import tiny_folder
from covey.network.policy_loader import load_pool_policy
from covey.protocol.canonical import sha256
from covey.protocol.params import ModelParams
from tests.fakes.chat import CHATML, DATED, END_OF_TEXT, IM_END, write_chat_model

pytestmark = pytest.mark.unit
PINNED = ModelParams(prompt_format="chat", chat_template_hash=sha256(CHATML.encode()), end_tokens=(END_OF_TEXT, IM_END))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "policy")


def test_load_pool_policy__template_and_ends_that_the_pool_pins__is_loaded(folder: Path) -> None:
    engine = HuggingFaceEngine()
    load_pool_policy(engine, folder, 3, PINNED)
    assert (engine.policy_version, engine.end_tokens) == (3, {END_OF_TEXT, IM_END})


def test_load_pool_policy__pool_that_pins_nothing__takes_any(folder: Path) -> None:
    engine = HuggingFaceEngine()
    load_pool_policy(engine, tiny_folder(), 0, ModelParams())
    load_pool_policy(engine, folder, 1, ModelParams())
    assert engine.end_tokens == {END_OF_TEXT, IM_END}


@pytest.mark.parametrize(
    ("template", "ends", "message"),
    [
        (DATED, (END_OF_TEXT, IM_END), "chat template"),
        (CHATML + " ", (END_OF_TEXT, IM_END), "chat template"),
        (None, (END_OF_TEXT, IM_END), "chat template has the hash none"),
        (CHATML, (IM_END,), r"end tokens are \[2\]"),
        (CHATML, IM_END, r"end tokens are \[2\]"),
        (CHATML, None, r"end tokens are \[2\]"),
        (CHATML, (END_OF_TEXT, IM_END, 9), r"end tokens are \[0, 2, 9\]"),
    ],
)
def test_load_pool_policy__another_template_or_other_ends__is_a_mismatch(
    tmp_path: Path, template: str | None, ends: object, message: str
) -> None:
    with pytest.raises(ProtocolError, match=f"policy_mismatch: .*{message}"):
        load_pool_policy(HuggingFaceEngine(), write_chat_model(tmp_path, template, ends=ends), 0, PINNED)


def test_load_policy__end_tokens_change__engine_uses_the_new_ones(folder: Path, tmp_path: Path) -> None:
    """The model is kept while only weights change. A new description builds another model."""
    engine = HuggingFaceEngine()
    engine.load_policy(folder, 0)
    engine.load_policy(write_chat_model(tmp_path / "other", ends=(7, 8)), 1)
    assert engine.end_tokens == {7, 8}
    engine.load_policy(folder, 2)
    assert engine.end_tokens == {END_OF_TEXT, IM_END}


def test_load_policy__end_token_outside_the_vocabulary__is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        OperatorError, match=r"model_unavailable: .*token id 300, but the largest token id of its model is 299"
    ):
        HuggingFaceEngine().load_policy(write_chat_model(tmp_path, ends=(IM_END, 300)), 0)


def test_generate__several_end_tokens__stops_at_the_first_of_any(folder: Path, tmp_path: Path) -> None:
    """The noise does not depend on the end tokens, so more of them cut a completion at the first that it contains."""
    free, ending = HuggingFaceEngine(), HuggingFaceEngine()
    free.load_policy(write_chat_model(tmp_path / "free", ends=(299,)), 0)
    prompt = encode_prompt(free.tokenizer, "How?", format=PromptFormat(kind="chat"))
    requests = [GenerationRequest(prompt=tuple(prompt), seed=seed, max_tokens=24) for seed in range(48)]
    whole = free.generate(requests, temperature=1.0)
    common = {token for each in whole for token in each.tokens}
    ends = frozenset({299, *sorted(common)[::32]})
    ending.load_policy(write_chat_model(tmp_path / "ending", ends=tuple(ends)), 0)
    last = set()
    for long, short in zip(whole, ending.generate(requests, temperature=1.0), strict=True):
        count = next((i + 1 for i, token in enumerate(long.tokens) if token in ends), len(long.tokens))
        assert short.tokens == long.tokens[:count]
        assert short.finished is (short.tokens[-1] in ends)
        last |= {short.tokens[-1]} & ends
    assert len(last) > 1
    assert ending.end_tokens == ends
