#!/bin/sh
# Build the wheel into dist/ and run the command from what it holds.
# With "clean" after the interpreter it is installed with its dependencies alone, in an environment of its own.
set -eu
python=$1
mkdir -p dist && rm -f dist/covey-*.whl
"$python" -m build --wheel --no-isolation --outdir dist . >/dev/null
wheel=$(pwd)/$(ls dist/covey-*.whl)
constraints=$(pwd)/constraints.txt
anvil=$(ls "$(pwd)"/node_modules/@foundry-rs/anvil-*/bin/anvil)
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
if [ "${2:-}" = clean ]; then
  "$python" -m venv venv
  python=$folder/venv/bin/python
  "$python" -m pip install -q -c "$constraints" "$wheel"
else
  "$python" -m pip install -q --no-deps --target site "$wheel"
  export PYTHONPATH="$folder/site"
fi
"$python" -m covey --help >/dev/null
"$python" -m covey init pool trial >/dev/null
[ "$("$python" -m covey --version)" = "covey $("$python" -c 'import covey; print(covey.__version__)')" ]
if [ "${2:-}" = clean ]; then
  COVEY_ANVIL=$anvil "$python" -m covey demo --steps 3 --cheats 1
fi
"$python" - <<'PY'
import covey, coordinator.api.application, trainer.loop, validator.loop, worker.loop  # every role imports what it needs
from covey.chain.abi_codec import CONTRACT_NAMES, load_artifact
from covey.model.tiny import tiny_folder
from pathlib import Path

assert Path.cwd() in Path(covey.__file__).parents, covey.__file__
assert all(load_artifact(name) for name in CONTRACT_NAMES) and (tiny_folder() / "model.safetensors").exists()
PY
echo "$wheel installs and runs"
