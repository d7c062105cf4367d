#!/bin/sh
# Prove on a machine with a GPU what was prepared without one; see prove.py.
#
#   prove.sh prepare FOLDER     here, with a network: wheels of ortboost's dependencies for PYTHON_VERSION (3.12)
#   prove.sh [--wheels FOLDER] [--device cpu] [-o proof.json] [--only SECTION]
#                               there, without one: all of it, in under ten minutes
#
# The runtime itself (onnxruntime-gpu and its CUDA) and PyTorch have to be there. PYTHON is the interpreter.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3}
if [ "${1:-}" = prepare ]; then
  version=${PYTHON_VERSION:-3.12}
  needs=$("$python" - "$root/pyproject.toml" "$version" <<'PY'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    wanted = tomllib.load(file)["project"]["dependencies"]
here = {"numpy", "tomli"}  # numpy comes with PyTorch, tomli is for older Pythons
print("\n".join(w.split(";")[0] for w in wanted if w.split(">")[0].strip() not in here))
PY
  )
  mkdir -p "$2"
  # shellcheck disable=SC2086
  "$python" -m pip download -q --only-binary=:all: --python-version "$version" \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    -d "$2" $needs
  rm -f "$2"/numpy-*.whl  # the machine has its own
  exit
fi
if [ "${1:-}" = --wheels ]; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$2"/*.whl
  PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
  shift 2
fi
cd "$root"
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
"$python" -m tools.gpu.prove "$@"
