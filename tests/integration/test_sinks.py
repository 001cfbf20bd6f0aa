"""The packages wandb, mlflow and trackio themselves, offline: two processes write one run, which is read back."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration
SECONDS = 240
WRITE = """
import sys
from pathlib import Path
from trainer.config import TrainerConfig
from trainer.monitoring.sinks import open_sinks
name, home, start = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
places = {"home": home, "pool": 1, "deployment": "d.json", "key_file": "k", "origin_root": "o"}
with open_sinks(TrainerConfig.model_validate({**places, "log": {"sinks": (name,), "project": "p"}})) as (sink,):
    for step in (start, start + 1):
        sink("update", step, {"reward/mean": step / 8})
    sink("evaluation", start, {"reward": 0.5, "n": 64})
"""
READ = {
    "wandb": """
import json, sys
from pathlib import Path
files = list(Path(sys.argv[2]).glob("wandb/offline-run-*/run-*.wandb"))
data = b"".join(file.read_bytes() for file in sorted(files))
print(json.dumps({"runs": len({file.name for file in files}), "updates": [data.count(name) > 0 for name in
    (b"reward/mean", b"0.125", b"0.375", b"evaluation/reward")]}))
""",
    "mlflow": """
import json, sys
import mlflow
client = mlflow.MlflowClient(f"sqlite:///{sys.argv[2]}/mlflow.db")
runs = client.search_runs([client.get_experiment_by_name("p").experiment_id])
print(json.dumps({"runs": len(runs), "updates": sorted([metric.step, metric.value] for metric in
    client.get_metric_history(runs[0].info.run_id, "reward/mean"))}))
""",
    "trackio": """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
lines = SQLiteStorage.get_logs("p", "run")
print(json.dumps({"runs": len(SQLiteStorage.get_runs("p")), "updates": sorted([line["step"], line["reward/mean"]]
    for line in lines if "reward/mean" in line)}))
""",
}


@pytest.mark.parametrize("name", READ)
def test_sinks__package_itself_offline__has_one_run_with_all_numbers(tmp_path: Path, name: str) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install 'covey[{name}]'")
    offline = {"WANDB_MODE": "offline", "MLFLOW_DISABLE_TELEMETRY": "true", "TRACKIO_DIR": str(tmp_path / "trackio")}
    outputs = []
    for code, start in ((WRITE, "0"), (WRITE, "2"), (READ[name], "")):
        command = [sys.executable, "-c", code, name, str(tmp_path / "run"), start]
        done = subprocess.run(
            command,
            env=os.environ | offline,
            cwd=Path.cwd(),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[:2] == ["", ""]
    expected = [True] * 4 if name == "wandb" else [[step, step / 8] for step in range(4)]
    assert json.loads(outputs[2]) == {"runs": 1, "updates": expected}
