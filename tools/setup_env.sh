#!/bin/sh
# Make a virtual environment with ortboost, a runtime and the development tools.
#
# Usage: sh tools/setup_env.sh FOLDER [training|stock]
#
# training  onnxruntime-training where it has a wheel (Python 3.10 to 3.12), else stock onnxruntime
# stock     the current onnxruntime, on the newest Python that is here
# PYTHON=python3.11 chooses the interpreter.
# EXTRAS=distributed adds extras.
# CONSTRAINTS= (empty) takes the newest releases instead of the versions of constraints.txt.
set -eu
venv=${1:?usage: sh tools/setup_env.sh FOLDER [training|stock]}
kind=${2:-training}

fail() { printf 'error: %s\n  where: %s\n  fix:   %s\n' "$1" "$2" "$3" >&2; exit 7; }

# Whether a command is a Python between two minor versions: suits python3 10 14
suits() {
    "$1" -c "import sys; sys.exit(not (3, $2) <= sys.version_info[:2] <= (3, $3))" 2>/dev/null
}

# Python of pyenv are seen too: it lists those whose short names it does not answer to.
newest() {
    for minor in 14 13 12 11 10; do
        for root in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.$minor.*/bin/python; do
            set -- "python3.$minor" "$root"
            for candidate; do if suits "$candidate" 10 14; then echo "$candidate"; return; fi; done
        done
    done
    if suits python3 10 14; then echo python3; fi
}

python=
if [ -n "${PYTHON:-}" ]; then
    if suits "$PYTHON" 10 14; then python=$PYTHON; fi
elif [ "$kind" = stock ]; then
    python=$(newest)
else
    for candidate in python3 python3.12 python3.11 python3.10; do
        if suits "$candidate" 10 12; then python=$candidate; break; fi
    done
    [ -n "$python" ] || python=$(newest)
fi
[ -n "$python" ] || fail "No Python from 3.10 to 3.14 was found." "${PYTHON:-python3}" \
    "Install one (Debian, Ubuntu: apt install python3 python3-venv), or set PYTHON=/path/to/python3."

extra=ort
if [ "$kind" = training ] && suits "$python" 10 12; then extra=cpu; fi

echo "setting up $venv with $("$python" --version) and ortboost[$extra]"
rm -rf "$venv"
if ! "$python" -m venv "$venv" >/dev/null 2>&1; then
    rm -rf "$venv"
    "$python" -m virtualenv -q "$venv" 2>/dev/null || fail "Python cannot make a virtual environment." \
        "$python -m venv" "Debian, Ubuntu: apt install python3-venv."
fi
constraints=${CONSTRAINTS-constraints.txt}
echo "installing ortboost and what it needs; half a gigabyte on disk, once:"
# pip's own lines, but only what it is at. The exit status goes around the pipe.
status=$({ {
    "$venv/bin/python" -m pip install --disable-pip-version-check --progress-bar off \
        -e ".[$extra,dev${EXTRAS:+,$EXTRAS}]" ${constraints:+-c "$constraints"} && echo 0 >&3 || echo 1 >&3
} | sed -un 's/^Collecting \([^ <>=!~;[(]*\).*/  \1/p; s/^Installing collected packages.*/  all are here: unpacking/p' >&2; } 3>&1)
[ "$status" = 0 ] ||
    fail "Installing the packages failed." "pip, see above" "Check the network, then run make again."
echo "$venv is ready"
