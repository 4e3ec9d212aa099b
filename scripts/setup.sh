#!/bin/sh
# Makes the virtual environment of the Makefile: setup.sh FOLDER [PYTHON]
set -eu
venv=$1
wanted=${2:-}

python=$(sh scripts/python.sh "$wanted") || exit $?

echo "Setting up $venv with $($python --version): a few minutes, once."
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
    --constraint constraints.txt --editable ".[cli,ts,gpu,hf,onnx,causal,ot,test,dev]"
# pip compiles on one core; a file that does not compile is one that nobody imports.
"$venv/bin/python" -m compileall -q -j 0 -x '/tests?/' "$venv"/lib/python*/site-packages >/dev/null 2>&1 || true
if "$venv/bin/python" -m pip list 2>/dev/null | grep -qiE '^(nvidia|cuda)'; then
    echo "note: CUDA packages came with torch; for a CPU-only environment install torch's CPU build first." >&2
fi
