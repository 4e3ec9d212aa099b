#!/bin/sh
# Builds the wheel and uses it in an empty environment, outside the checkout: check_wheel.sh FOLDER PYTHON
# First as `pip install kernelhead` leaves it, then with the extra cli.
set -eu
folder=$1
python=$2
checkout=$PWD
rm -rf "$folder"
mkdir -p "$folder/outside"
folder=$(cd "$folder" && pwd)
"$python" -m pip wheel -qq --disable-pip-version-check --no-deps --wheel-dir "$folder/dist" "$checkout"
wheel=$(echo "$folder"/dist/*.whl)
"$python" -m venv "$folder/env"

install() { # pip compiles on one core; two are there
    "$folder/env/bin/pip" install -qq --disable-pip-version-check --no-compile \
        --constraint "$checkout/constraints.txt" "$1"
    "$folder/env/bin/python" -m compileall -q -j 2 -x '/(tests|sympy|networkx)/' "$folder"/env/lib/python*/site-packages >/dev/null || true
}

cd "$folder/outside"
for extras in "" "[cli]"; do
    install "$wheel$extras"
    env -u PYTHONPATH "$folder/env/bin/python" -I -W error "$checkout/scripts/use_wheel.py" "$extras"
done
cd "$checkout"
rm -rf "$folder"
