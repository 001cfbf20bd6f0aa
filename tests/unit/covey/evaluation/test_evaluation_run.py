"""One model's completions: how they are asked, read, graded and recorded, with an engine that says given texts."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from covey.environments.base import refuse_data_sets
from covey.evaluation.evaluation_config import read_config
from covey.evaluation.evaluation_run import (
    CompletionText,
    EvaluationRun,
    Graders,
    Judged,
    encode_questions,
    list_keys,
)
from covey.evaluation.question_file import QuestionFile, write_questions
from covey.evaluation.sample_log import SampleLog
from covey.model.prompts import RAW
from covey.protocol.params import GradingParams
from covey.protocol.seeding import compute_trial_seed
from covey.runtime.settings import SandboxSettings
from tests.fakes.engines import Scripted
from tests.unit.covey.evaluation import test_row_layouts as rows

pytestmark = pytest.mark.unit


def ask(folder: Path, found: Sequence[dict[str, Any]], **options: Any) -> QuestionFile:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
    choice = read_config(None, {"tasks": {"file": folder / "rows.jsonl", "options": options}}).tasks
    return write_questions(choice, folder / "questions.jsonl", data_sets=refuse_data_sets)


def judge(questions: QuestionFile, *texts: str) -> list[Judged]:
    """Grade one finished completion per question."""
    with Graders(questions, GradingParams(), SandboxSettings()) as graders:
        asked = [questions.read(i) for i in range(len(questions))]
        return graders.judge(asked, [CompletionText(text=text, tokens=9, finished=True) for text in texts])


def test_judge__replies_of_the_exam__have_answer_and_confidence(tmp_path: Path) -> None:
    questions = ask(tmp_path, [rows.HLE_CHOICE, rows.HLE_EXACT, rows.HLE_CHOICE, rows.HLE_EXACT, rows.HLE_CHOICE])
    assert judge(
        questions,
        "Explanation: it is.\nAnswer: B\nConfidence: 80%",
        "Explanation: x\nExact Answer: **saffron**\nConfidence: 20%",
        "<think>Answer: B</think>Explanation: no.\nAnswer: A. red\nConfidence: 0.5",
        "I do not know.",
        "Answer: B <think>",
    ) == [
        Judged(answered=True, score=1.0, confidence=0.8),
        Judged(answered=True, score=1.0, confidence=0.2),
        Judged(answered=True, score=0.0, confidence=0.5),
        Judged(answered=False, score=0.0),
        Judged(answered=False, score=0.0),
    ]


def test_judge__replies_of_the_exam_to_a_template_that_opens_the_thought__need_its_end(tmp_path: Path) -> None:
    questions = ask(tmp_path, [rows.HLE_CHOICE] * 2, thinking_required=True)
    first, second = judge(questions, "so B.</think>Answer: B\nConfidence: 7%", "Answer: B\nConfidence: 7%")
    assert (first, second.score, second.answered) == (Judged(answered=True, score=1.0, confidence=0.07), 0.0, False)


def test_judge__choices_of_two_kinds_of_rows__are_graded_in_their_order(tmp_path: Path) -> None:
    questions = ask(tmp_path, [rows.MMLU, rows.MMLU_PRO, rows.ARC])
    found = judge(questions, "<answer>B</answer>", "It is <answer>II</answer>.", "<answer>A</answer> or B")
    assert [(each.score, each.answered) for each in found] == [(1.0, True), (1.0, True), (0.0, True)]


class Case:
    """A run over three questions with two completions each."""

    def __init__(self, folder: Path, texts: Sequence[str], *, context: int | None = None, turn: int = 4) -> None:
        questions = ask(folder, [rows.MMLU, rows.MMLU | {"question": "Which one is it, of all these? " * 4}, rows.ARC])
        seeds = [compute_trial_seed("eval", 5, i // 2, i % 2) for i in range(6)]
        self.engine = Scripted(dict(zip(seeds, texts, strict=True)))
        self.log = SampleLog(folder / "out")
        self.log.open({}, {})
        self.graders = Graders(questions, GradingParams(), SandboxSettings())
        self.prompts = encode_questions(questions, self.engine.tokenizer, RAW)
        self.run = EvaluationRun(
            log=self.log,
            questions=questions,
            graders=self.graders,
            engine=self.engine,  # type: ignore[arg-type]
            model=1,
            prompts=self.prompts,
            sampling=read_config(
                None, {"tasks": {"kind": "x"}, "sampling": {"samples": 2, "seed": 5, "max_tokens": 40}}
            ).sampling,
            context=context,
            turn=turn,
        )

    def __enter__(self) -> "Case":
        return self

    def __exit__(self, *_: object) -> None:
        self.log.close()
        self.graders.close()


TEXTS = ["<answer>B</answer>", "<answer>C</answer>", "B", "<answer>B</answer>...", "<answer>2</answer>", "..."]


def test_fill__every_completion__is_asked_once_and_recorded(tmp_path: Path) -> None:
    counts: list[int] = []
    with Case(tmp_path, TEXTS) as case:
        case.run.fill(counts.append)
        records = [case.log.records[key] for key in list_keys(1, 3, 2)]
        assert [record.score for record in records] == [1, 0, 0, 0, 0, 0]
        assert [record.answered for record in records] == [True, True, False, True, True, False]
        assert [record.finished for record in records] == [True, True, True, False, True, False]
        assert records[0].tokens == len(TEXTS[0]) + 1
        assert [case.log.read_text(record.key) for record in records] == TEXTS
        assert [len(call) for call in case.engine.calls] == counts == [4, 2]
        assert case.engine.calls[0][2].prompt == case.prompts[1]
        case.run.fill(counts.append)
        assert len(case.engine.calls) == 2  # nothing is missing


def test_fill__an_interrupted_turn__is_generated_whole_and_recorded_once(tmp_path: Path) -> None:
    with Case(tmp_path, TEXTS) as case:
        case.run.fill(lambda count: None)
        lines = (tmp_path / "out" / "samples.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "out" / "samples.jsonl").write_bytes(b"".join(lines[:1] + lines[3:]))
    counts: list[int] = []
    with Case(tmp_path, TEXTS) as case:
        case.run.fill(counts.append)
        assert ([len(call) for call in case.engine.calls], counts) == ([4], [2])
    after = (tmp_path / "out" / "samples.jsonl").read_bytes().splitlines(keepends=True)
    assert sorted(after) == sorted(lines)


def test_fill__a_prompt_that_fills_the_context__is_wrong_and_others_have_less_room(tmp_path: Path) -> None:
    with Case(tmp_path, TEXTS) as case:
        lengths = list(map(len, case.prompts))
    with Case(tmp_path, TEXTS, context=lengths[0] + 20) as case:
        case.run.fill(lambda count: None)
        assert lengths[1] >= lengths[0] + 20
        records = [case.log.records[key] for key in list_keys(1, 3, 2)]
        assert [record.limit for record in records] == ["", "", *["prompt_too_long"] * 2, "", ""]
        assert (records[2].tokens, records[2].score, records[2].answered) == (0, 0.0, False)
        assert [request.max_tokens for call in case.engine.calls for request in call] == [
            20, 20, *[min(40, lengths[0] + 20 - lengths[2])] * 2
        ]  # fmt: skip


def test_fill__grading_that_fails__ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Case(tmp_path, TEXTS) as case:
        monkeypatch.setattr(Graders, "judge", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            case.run.fill(lambda count: None)
        assert case.log.records == {}
