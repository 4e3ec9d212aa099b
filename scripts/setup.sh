#!/bin/sh
# Makes the virtual environment of the Makefile: setup.sh FOLDER [PYTHON]
set -eu
venv=$1
wanted=${2:-}

recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=
for candidate in ${wanted:-python3 python3.13 python3.12 python3.11 python}; do
    if recent "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    found=$( (${wanted:-python3} --version) 2>&1 | head -n 1 || true)
    echo "kernelhead needs Python 3.11 or newer; found: ${found:-none}." >&2
    echo "Install one, or name it: make run PYTHON=/path/to/python3.11" >&2
    exit 2
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "kernelhead: $($python --version) lacks the module venv; on Debian: apt-get install python3-venv" >&2
    exit 2
fi

echo "Setting up $venv with $($python --version): a few minutes, once."
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
    --constraint constraints.txt --editable ".[cli,ts,gpu,hf,onnx,causal,ot,test,dev]"
# pip compiles on one core; a file that does not compile is one that nobody imports.
"$venv/bin/python" -m compileall -q -j 0 -x '/tests?/' "$venv"/lib/python*/site-packages >/dev/null 2>&1 || true
if "$venv/bin/python" -m pip list 2>/dev/null | grep -qiE '^(nvidia|cuda)'; then
    echo "note: CUDA packages came with torch; for a CPU-only environment install torch's CPU build first." >&2
fi
