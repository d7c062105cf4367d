#!/bin/sh
# Make a virtual environment with ortboost, the CPU training runtime and the development tools.
# Usage: sh tools/setup_env.sh FOLDER        PYTHON=python3.11 chooses the interpreter.
set -eu
venv=${1:?usage: sh tools/setup_env.sh FOLDER}

fail() { printf 'error: %s\n  where: %s\n  fix:   %s\n' "$1" "$2" "$3" >&2; exit 7; }

# onnxruntime-training 1.19.2 has wheels for Python up to 3.12.
suits() { "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

python=
for candidate in ${PYTHON:-python3 python3.12 python3.11 python3.10}; do
    if suits "$candidate"; then python=$candidate; break; fi
done
[ -n "$python" ] || fail "No Python 3.10, 3.11 or 3.12 was found." "${PYTHON:-python3}" \
    "Install one (Debian, Ubuntu: apt install python3 python3-venv), or set PYTHON=/path/to/python3.11."

echo "setting up $venv with $("$python" --version)"
rm -rf "$venv"
if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    rm -rf "$venv"
    "$python" -m virtualenv -q "$venv" 2>/dev/null || fail "Python cannot make a virtual environment." \
        "$python -m venv" "Debian, Ubuntu: apt install python3-venv."
fi
"$venv/bin/python" -m pip install -q --disable-pip-version-check -e '.[cpu,dev]' ||
    fail "Installing the packages failed." "pip, see above" "Check the network, then run make again."
