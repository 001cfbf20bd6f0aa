"""Rows of benchmarks are graded in sandbox processes as their answers deserve."""

import json
from pathlib import Path
from typing import Any

import pytest

from covey.engines.hf.engine import HuggingFaceEngine
from covey.environments.base import refuse_data_sets
from covey.evaluation.evaluate import evaluate
from covey.evaluation.evaluated_policies import find_policy
from covey.evaluation.evaluation_config import read_config
from covey.evaluation.evaluation_run import CompletionText, Graders
from covey.evaluation.exam_replies import SYSTEM_EXACT
from covey.evaluation.question_file import write_questions
from covey.model.policy_files import load_tokenizer
from covey.protocol.params import GradingParams
from covey.runtime.settings import SandboxSettings
from tests.fakes.chat import write_chat_model
from tests.fakes.spelling_rows import QUIET
from tests.unit.covey.evaluation import test_row_layouts as rows

pytestmark = pytest.mark.integration

SUM = "```python\na, b = map(int, input().split())\nprint(a {} b)\n```"
CASES = {
    "gsm8k": (rows.GSM8K, r"So \boxed{1,500}.", r"So \boxed{1501}.", "1500"),
    "math": (rows.MATH, r"\boxed{\dfrac{10}{12}}", r"\boxed{\frac56} or \boxed{1}", "5/6"),
    "aime": (rows.AIME_2024, r"\boxed{033}", r"\boxed{34}", "thirty-three"),
    "livecodebench": (rows.LIVECODEBENCH, SUM.format("+"), SUM.format("*"), "print(3)"),
    "hle": (rows.HLE_EXACT | {"answer": r"\frac{1}{2}"}, "Exact Answer: $1/2$", "Exact Answer: 2", "1/2"),
}
"""A row of each layout with a right answer, a wrong one, and a text without an answer."""


@pytest.mark.parametrize(
    "layout",
    ["gsm8k", "livecodebench", *(pytest.param(name, marks=pytest.mark.full) for name in ("math", "aime", "hle"))],
)
def test_graders__answers_to_a_row__earn_what_they_deserve(tmp_path: Path, layout: str) -> None:
    row, *texts = CASES[layout]
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(row)}\n" * 3)
    choice = read_config(None, {"tasks": {"file": path}}).tasks
    questions = write_questions(choice, tmp_path / "questions.jsonl", data_sets=refuse_data_sets)
    assert (questions.layout, len(questions)) == (layout, 3)
    readings = [CompletionText(text=text, tokens=9, finished=True) for text in texts]
    asked = [questions.read(i) for i in range(3)]
    with Graders(questions, GradingParams(), SandboxSettings()) as graders:
        found = graders.judge(asked, readings)
        cut_off = graders.judge(asked[:1], [CompletionText(text=texts[0], tokens=9, finished=False)])
    assert [each.score for each in found] == [1.0, 0.0, 0.0]
    assert found[0].answered
    assert not found[2].answered
    assert cut_off[0].score == 0.0


def test_evaluate__a_chat_model__is_asked_by_its_template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_chat_model(tmp_path / "chat")
    (tmp_path / "rows.jsonl").write_text(json.dumps(rows.HLE_EXACT) + "\n")
    asked: list[list[int]] = []
    original = HuggingFaceEngine.generate

    def generate(engine: HuggingFaceEngine, requests: Any, **options: Any) -> Any:
        asked.extend(list(request.prompt) for request in requests)
        return original(engine, requests, **options)

    monkeypatch.setattr(HuggingFaceEngine, "generate", generate)
    for number, format in enumerate(("auto", "raw")):
        tables = {
            "tasks": {"file": tmp_path / "rows.jsonl"},
            "prompt": {"format": format, "chat_template_kwargs": {"enable_thinking": False}},
            "sampling": {"max_tokens": 4},
            "engine": {"name": "hf"},
        }
        evaluate([find_policy(str(model), None)], read_config(None, tables), tmp_path / str(number), QUIET)
    tokenizer = load_tokenizer(model)
    messages = [{"role": "system", "content": SYSTEM_EXACT}, {"role": "user", "content": rows.HLE_EXACT["question"]}]
    chat = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert tokenizer.decode(asked[0]) == chat
    assert chat.endswith("</think>\n\n")
    assert tokenizer.decode(asked[1]) == f"<|endoftext|>{SYSTEM_EXACT}\n{rows.HLE_EXACT['question']}\n"
