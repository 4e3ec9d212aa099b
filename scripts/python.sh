#!/bin/sh
# Prints a Python that is recent enough, or says what is missing: python.sh [PYTHON]
set -eu
wanted=${1:-}

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
echo "$python"
