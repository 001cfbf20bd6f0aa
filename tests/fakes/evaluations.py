"""Finished evaluations without a model: questions, completions and results that a test writes down."""

import json
from collections.abc import Sequence
from pathlib import Path

from covey.environments.base import refuse_data_sets
from covey.evaluation.evaluation_config import EvaluationConfig, read_config
from covey.evaluation.evaluation_scores import EvaluationResults, compute_results
from covey.evaluation.question_file import QuestionFile, write_questions
from covey.evaluation.sample_log import SampleLog, SampleRecord


def write_choice_rows(path: Path, questions: Sequence[str]) -> None:
    """Write rows with four choices, of which the second one is right."""
    rows = [
        {"question": text, "choices": ["1", "2", "3", "4"], "answer": 1, "subject": f"subject {i % 2}"}
        for i, text in enumerate(questions)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def finish(
    folder: Path, questions: Sequence[str], labels: Sequence[str], texts: Sequence[Sequence[Sequence[str]]]
) -> tuple[EvaluationResults, SampleLog, QuestionFile, EvaluationConfig]:
    """Return an evaluation in which `texts[model][question]` are completions. The longer ones are right."""
    write_choice_rows(folder / "rows.jsonl", questions)
    samples = len(texts[0][0])
    sampling = {"samples": samples, "temperature": 1.0}
    config = read_config(None, {"tasks": {"file": folder / "rows.jsonl"}, "sampling": sampling})
    asked = write_questions(config.tasks, folder / "questions.jsonl", data_sets=refuse_data_sets)
    log = SampleLog(folder / "out")
    log.open({}, {})
    log.append(
        (
            SampleRecord(
                model=i, question=j, sample=k, tokens=len(text), finished=k % 2 == 0, answered=True,
                score=float(len(text) > 20),
            ),
            text,
        )
        for i, by_question in enumerate(texts)
        for j, by_sample in enumerate(by_question)
        for k, text in enumerate(by_sample)
    )  # fmt: skip
    results = compute_results(
        log.records,
        labels,
        samples=samples,
        groups=[asked.read(i).labels for i in range(len(asked))],
        skipped=asked.skipped,
        has_confidence=False,
    )
    return results, log, asked, config
