#!/bin/sh
# Build the wheel, install it without its dependencies' download in an environment that borrows them, run the command.
set -eu
python=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$python" -m build --wheel --no-isolation --outdir "$folder" . >/dev/null
"$python" -m venv "$folder/venv"
# The dependencies are those of the development environment: downloading them again would test the network, not the wheel.
site=$("$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
"$folder/venv/bin/pip" install -q --no-deps "$folder"/covey-*.whl
target=$("$folder/venv/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
echo "$site" > "$target/borrowed.pth"
cd "$folder"
"$folder/venv/bin/covey" --help >/dev/null
"$folder/venv/bin/python" - "$target" <<'PY'
import pathlib, sys
import covey
from covey.chain.codec import CONTRACT_NAMES, load_artifact
from covey.model.tiny import tiny_folder

assert str(pathlib.Path(covey.__file__)).startswith(sys.argv[1]), "the wheel's own package must be the one imported"
assert all(load_artifact(name) for name in CONTRACT_NAMES) and (tiny_folder() / "model.safetensors").exists()
PY
echo "the wheel installs and runs"
