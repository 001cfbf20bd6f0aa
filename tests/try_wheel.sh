#!/bin/sh
# Build the wheel, install it with its dependencies in a clean environment, run the command.
set -eu
python=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m build --wheel --no-isolation --outdir "$folder" . >/dev/null
"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q -c constraints.txt "$folder"/covey-*.whl
cd "$folder"
"$folder/venv/bin/covey" --help >/dev/null
"$folder/venv/bin/python" - <<'PY'
import coordinator.api, trainer.loop, validator.loop, worker.loop  # every role imports what it needs
from covey.chain.codec import CONTRACT_NAMES, load_artifact
from covey.model.tiny import tiny_folder

assert all(load_artifact(name) for name in CONTRACT_NAMES) and (tiny_folder() / "model.safetensors").exists()
PY
echo "the wheel installs and runs"
