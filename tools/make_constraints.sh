#!/bin/sh
# Write constraints.txt anew: the newest releases that go together, for every Python from 3.10.
#
# Usage: sh tools/make_constraints.sh          (make constraints)
#
# One file holds for both runtimes; `make newest` tests without it.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -q --disable-pip-version-check uv

for runtime in cpu ort; do
    "$work/venv/bin/uv" pip compile --quiet --universal --python-version 3.10 --no-header --no-annotate \
        --no-emit-index-url --extra "$runtime" --extra dev --extra plot --extra images --extra parquet --extra slim --extra tensorboard --extra docs pyproject.toml \
        >"$work/$runtime"
done
{
    echo "# The versions that CI tests with; written by tools/make_constraints.sh."
    sort -u "$work/cpu" "$work/ort" | grep -v "sys_platform == 'win32'"
} >"$work/constraints.txt"
mv "$work/constraints.txt" constraints.txt
echo "constraints.txt: $(grep -c == constraints.txt) versions"
