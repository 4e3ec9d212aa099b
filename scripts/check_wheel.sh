#!/bin/sh
# Builds the wheel and uses it in an empty environment, outside the checkout: check_wheel.sh FOLDER [PYTHON]
# First as `pip install kernelhead` leaves it, then with the extra cli; no data sets of the one who builds it.
set -eu
folder=$1
python=$(sh scripts/python.sh "${2:-}") || exit $?
checkout=$PWD
rm -rf "$folder"
mkdir -p "$folder/outside"
folder=$(cd "$folder" && pwd)
"$python" -m venv "$folder/env"
"$folder/env/bin/pip" wheel -qq --disable-pip-version-check --no-deps --wheel-dir "$folder/dist" "$checkout"
wheel=$(echo "$folder"/dist/*.whl)

cd "$folder/outside"
for extras in "" "[cli]"; do
    "$folder/env/bin/pip" install -qq --disable-pip-version-check --no-compile \
        --constraint "$checkout/constraints.txt" "$wheel$extras"
    env -u PYTHONPATH -u KERNELHEAD_DATA "$folder/env/bin/python" -I "$checkout/scripts/use_wheel.py" "$extras"
done
cd "$checkout"
rm -rf "$folder"
