"""The report of an evaluation as one HTML page: tables, plots and samples to read."""

from collections.abc import Iterable, Mapping, Sequence

from covey.evaluation.evaluation_config import EvaluationConfig
from covey.evaluation.evaluation_scores import EvaluationResults, ModelScores, list_ks
from covey.evaluation.question_file import QuestionFile
from covey.evaluation.sample_log import SampleLog
from covey.evaluation.statistics import Estimate
from covey.reporting.html import (
    Markup,
    PlotPoint,
    PlotRow,
    PlotSeries,
    build_bar_plot,
    build_details,
    build_heading,
    build_interval_plot,
    build_line_plot,
    build_note,
    build_page,
    build_table,
    build_text,
)

SHOWN_QUESTIONS = 40
"""Maximum number of questions whose completions are shown."""
SHOWN_SAMPLES = 2
"""Maximum number of completions of a question and a model that are shown."""
MAX_SHOWN = 20_000
"""Maximum number of characters of a text that is shown."""
_BINS = 24


def build_report(results: EvaluationResults, log: SampleLog, questions: QuestionFile, config: EvaluationConfig) -> str:
    """Return the page of a complete evaluation."""
    title = f"Evaluation on {describe_tasks(config)}"
    blocks = [
        build_note(describe_setting(results, config)),
        *(build_note(text) for text in describe_skipped(results.skipped)),
        build_heading("Scores"),
        build_table(*tabulate_models(results)),
        build_interval_plot(
            [_plot(model.label, model.mean) for model in results.models],
            title="Mean score with 95 percent intervals, clustered by question",
            x_label="mean score",
        ),
        *_show_comparisons(results),
        *_show_pass_rates(results),
        *_show_calibration(results),
        *_show_groups(results),
        *_show_lengths(results, log),
        *_show_samples(results, log, questions),
    ]
    return build_page(title, blocks)


def describe_tasks(config: EvaluationConfig) -> str:
    """Return the name of the tasks for people, for example "gsm8k.jsonl" or "spell_backward"."""
    tasks = config.tasks
    if tasks.file is not None:
        return tasks.file.name
    return str(tasks.options.get("name") or tasks.kind)


def describe_setting(results: EvaluationResults, config: EvaluationConfig) -> str:
    """Return one line with the number of questions and how completions were sampled."""
    sampling = config.sampling
    each = "1 completion" if results.samples == 1 else f"{results.samples} completions"
    return (
        f"{results.questions} questions, {each} each, temperature {sampling.temperature:g}, at most "
        f"{sampling.max_tokens} tokens, seed {sampling.seed}"
    )


def describe_skipped(skipped: Mapping[str, int]) -> list[str]:
    """Return one line per reason for which rows were not asked."""
    words = {"picture": "a picture, which is not shown to models", "judge": "an answer that only a judge can grade"}
    return [f"not asked: {count} rows with {words.get(reason, reason)}" for reason, count in sorted(skipped.items())]


def tabulate_models(results: EvaluationResults) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the table of models."""
    n = results.samples
    heads = ["model", f"avg@{n}", *([f"pass@{n}", f"pass^{n}"] if n > 1 else []), "finished", "extracted", "tokens"]
    rows = [
        [
            model.label,
            format_estimate(model.mean),
            *([format_estimate(model.pass_at[n]), format_estimate(model.pass_all[n])] if n > 1 else []),
            format_share(model.finished.value),
            format_share(model.answered.value),
            f"{model.tokens.mean:.0f}",
        ]
        for model in results.models
    ]
    return heads, rows


def tabulate_comparisons(results: EvaluationResults) -> tuple[list[str], list[list[str]]]:
    """Return heads and rows of the table of paired comparisons."""
    heads = ["second model", "first model", "difference", "questions", "win", "tie", "loss"]
    rows = []
    for pair in results.comparisons:
        found = pair.result
        counts = (found.questions, found.wins, found.ties, found.losses)
        rows.append([pair.second, pair.first, format_estimate(found.difference, is_signed=True), *map(str, counts)])
    return heads, rows


def format_share(value: float) -> str:
    """Return a share in percent, for example "41.2 %"."""
    return f"{100 * value:.1f} %"


def format_estimate(estimate: Estimate, *, is_signed: bool = False) -> str:
    """Return a value and its interval in percent, for example "41.2 % [35.0, 47.4]"."""
    sign = "+" if is_signed else ""
    value = f"{100 * estimate.value:{sign}.1f} %"
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{100 * estimate.low:{sign}.1f}, {100 * estimate.high:{sign}.1f}]"


def _plot(label: str, estimate: Estimate) -> PlotRow:
    return PlotRow(label=label, value=estimate.value, low=estimate.low, high=estimate.high)


def _show_comparisons(results: EvaluationResults) -> Iterable[Markup]:
    if not results.comparisons:
        return
    yield build_heading("Paired comparison")
    yield build_table(*tabulate_comparisons(results), texts=2)
    yield build_interval_plot(
        [_plot(f"{pair.second} - {pair.first}", pair.result.difference) for pair in results.comparisons],
        title="Difference of mean scores on the same questions, with 95 percent intervals",
        x_label="second minus first",
    )


def _show_pass_rates(results: EvaluationResults) -> Iterable[Markup]:
    if results.samples == 1:
        return
    yield build_heading("Several completions")
    ks = list_ks(results.samples)
    for title, estimates in (
        ("pass@k: at least one of k completions is correct", [model.pass_at for model in results.models]),
        ("pass^k: all of k completions are correct", [model.pass_all for model in results.models]),
    ):
        lines = [
            PlotSeries(name=model.label, points=_list_points(each, ks))
            for model, each in zip(results.models, estimates, strict=True)
        ]
        yield build_line_plot(lines, title=title, x_label="k", y_label="share", is_log=True)
    heads = ["model", *(f"pass@{k}" for k in ks), *(f"pass^{k}" for k in ks)]
    yield build_table(
        heads,
        [
            [
                model.label,
                *(format_share(model.pass_at[k].value) for k in ks),
                *(format_share(model.pass_all[k].value) for k in ks),
            ]
            for model in results.models
        ],
    )


def _list_points(estimates: Mapping[int, Estimate], ks: Sequence[int]) -> list[PlotPoint]:
    return [PlotPoint(x=k, y=estimates[k].value, low=estimates[k].low, high=estimates[k].high) for k in ks]


def _show_calibration(results: EvaluationResults) -> Iterable[Markup]:
    scored = [(model.label, model.calibration) for model in results.models if model.calibration is not None]
    if not scored:
        return
    yield build_heading("Calibration")
    yield build_table(
        ["model", "calibration error", "as published (hle_compatible)", "answers", "without confidence"],
        [
            [
                label,
                format_share(score.error),
                "none" if score.hle_compatible is None else format_share(score.hle_compatible),
                str(score.answers),
                str(score.without_confidence),
            ]
            for label, score in scored
        ],
    )


def _show_groups(results: EvaluationResults) -> Iterable[Markup]:
    for name in sorted({name for model in results.models for name in model.groups}):
        yield build_heading(f"By {name}")
        groups = [model.groups[name] for model in results.models]
        yield build_table(
            [name, "questions", *(model.label for model in results.models)],
            [
                [value, str(groups[0][value].questions), *(format_estimate(group[value].mean) for group in groups)]
                for value in groups[0]
            ],
        )


def _show_lengths(results: EvaluationResults, log: SampleLog) -> Iterable[Markup]:
    yield build_heading("Lengths")
    heads = ["model", "mean", "median", "90 percent", "longest", "counted as wrong ungraded"]
    yield build_table(heads, [_describe_length(model) for model in results.models])
    for number, model in enumerate(results.models):
        lengths = [record.tokens for record in log.records.values() if record.model == number]
        width = max(1, -(-(max(lengths) + 1) // _BINS))
        counts = [0] * (max(lengths) // width + 1)
        for length in lengths:
            counts[length // width] += 1
        bars = [(str(i * width), float(count)) for i, count in enumerate(counts)]
        title = f"Lengths of completions of {model.label}, in steps of {width}"
        yield build_bar_plot(bars, title=title, x_label="tokens, from", y_label="completions")


def _describe_length(model: ModelScores) -> list[str]:
    tokens = model.tokens
    limits = ", ".join(f"{count} {limit}" for limit, count in model.limits.items()) or "0"
    return [model.label, f"{tokens.mean:.1f}", f"{tokens.median:.0f}", f"{tokens.p90:.0f}", str(tokens.longest), limits]


def _show_samples(results: EvaluationResults, log: SampleLog, questions: QuestionFile) -> Iterable[Markup]:
    shown = _choose_questions(len(questions))
    yield build_heading("Samples")
    yield build_note(
        f"{len(shown)} of {len(questions)} questions, evenly spaced, with at most {SHOWN_SAMPLES} completions of each "
        "model. The file samples.jsonl has all of them."
    )
    for number in shown:
        question = questions.read(number)
        system = [build_note("system message"), build_text(_cut(question.prompt.system))] * bool(question.prompt.system)
        blocks = [
            *system,
            build_note("prompt"),
            build_text(_cut(question.prompt.text)),
            build_note("graded by"),
            build_text(_cut(str(dict(question.prompt.verification)))),
        ]
        rates = []
        for index, model in enumerate(results.models):
            records = [log.records[index, number, sample] for sample in range(results.samples)]
            mean = sum(record.score for record in records) / len(records)
            rates.append(format_share(mean) if results.samples > 1 else ("right" if mean > 0.5 else "wrong"))
            for record in records[:SHOWN_SAMPLES]:
                verdict = "right" if record.score > 0.5 else "wrong"
                end = "" if record.finished else ", cut off"
                summary = f"{model.label}, completion {record.sample}: {verdict}, {record.tokens} tokens{end}"
                blocks.append(build_details(summary, [build_text(_cut(log.read_text(record.key)))]))
        name = f"{question.name} " if question.name else ""
        yield build_details(f"{name}({', '.join(rates)}): {_cut(question.prompt.text, 100)}", blocks)


def _choose_questions(count: int) -> list[int]:
    if count <= SHOWN_QUESTIONS:
        return list(range(count))
    return [i * count // SHOWN_QUESTIONS for i in range(SHOWN_QUESTIONS)]


def _cut(text: str, limit: int = MAX_SHOWN) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\u2026 ({len(text)} characters)"
