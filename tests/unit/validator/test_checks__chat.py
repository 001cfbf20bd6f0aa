"""A chat pool: worker and validator build the same slots, with the model's own template and two end tokens."""

import dataclasses
from pathlib import Path

import pytest

from covey.devnet import deploy
from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments import registry
from covey.environments.registry import DEMO
from covey.model.policy_files import load_tokenizer
from covey.protocol.params import PoolParams
from covey.protocol.verdict import Reason
from tests.fakes.chat import END_OF_TEXT, IM_END, write_chat_model
from tests.fakes.grading import grade_with
from tests.fakes.tools import DOMAIN, MANIFEST, Work, Worker, make_model_params
from validator.checks import CheckTools, SubmissionClaim, check_reward, check_seeding, check_termination

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("chat") / "policy")


@pytest.fixture(scope="module")
def params() -> PoolParams:
    model = {"prompt_format": "chat", "chat_template_kwargs": {"enable_thinking": False}}
    return make_model_params(model={"max_prompt_tokens": 128, "max_completion_tokens": 5, **model})


def load(folder: Path) -> HuggingFaceEngine:
    engine = HuggingFaceEngine()
    engine.load_policy(folder, 0)
    return engine


@pytest.fixture(scope="module")
def work(folder: Path, params: PoolParams) -> Work:
    """Return a worker's submission in which each completion is two tokens, the second of which is an end token."""
    work = Worker(deploy.derive_wallet("test", "node"), params, load(folder)).work()
    ends = [END_OF_TEXT, IM_END]
    return work.with_each(
        lambda row: {
            "tokens": (70, ends[row.sibling % 2]),
            "logprobs": row.logprobs[:1] * 2,
            "finished": True,
            "reward": 0.0,
        }
    )


@pytest.fixture(scope="module")
def tools(folder: Path, params: PoolParams) -> CheckTools:
    """Return a validator's tools with their own engine and environment."""
    environment = registry.load(DEMO)
    return CheckTools(
        params=params, domain=DOMAIN, engine=load(folder), environment=environment,
        decode=bytes, grade=grade_with(environment),
    )  # fmt: skip


def build_claim(work: Work) -> SubmissionClaim:
    return SubmissionClaim(
        receipt=work.receipt,
        signature="",
        record_hash=MANIFEST,
        contract="",
        drawn=(),
        file=work.file,
        rollouts=list(work.rollouts),
    )


def test_checks__work_of_a_chat_model__passes_with_either_end_token(
    work: Work, tools: CheckTools, folder: Path
) -> None:
    claim = build_claim(work)
    assert check_seeding(claim, tools) is None
    assert check_termination(claim, tools) is None
    assert check_reward(claim, tools) is None
    for group, prompt in claim.prompts.items():
        question = prompt.prompt.text
        expected = load_tokenizer(folder).apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            enable_thinking=False,
            return_dict=False,
        )
        assert {row.prompt for row in work.rollouts if row.group == group} == {tuple(expected)}


@pytest.mark.parametrize(
    "tokens", [(70, END_OF_TEXT, IM_END), (IM_END, 70, END_OF_TEXT), (70, 71)], ids=["two", "early", "none"]
)
def test_checks__misplaced_or_missing_end_token__is_a_false_end(
    work: Work, tools: CheckTools, tokens: tuple[int, ...]
) -> None:
    claim = build_claim(work.with_one(0, tokens=tokens, logprobs=(-1.0,) * len(tokens)))
    judgement = check_termination(claim, tools)
    assert judgement is not None
    assert judgement.reason is Reason.FALSE_TERMINATION


def test_checks__prompt_without_the_switch_for_thinking__is_a_wrong_prompt(work: Work, tools: CheckTools) -> None:
    raw = tools.params.model.model_copy(update={"chat_template_kwargs": {}})
    other = dataclasses.replace(tools, params=tools.params.model_copy(update={"model": raw}))
    judgement = check_seeding(build_claim(work), other)
    assert judgement is not None
    assert judgement.reason is Reason.WRONG_PROMPT
