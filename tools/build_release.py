"""Build the wheel and the sdist, and check them in an empty environment.

    python tools/build_release.py                 into dist/, from the checkout
    python tools/build_release.py --release       also require a dated changelog section

The checks: twine accepts the metadata; the wheel contains every module and card and nothing else;
the wheel built from the sdist is the same; installed outside the checkout with the current
onnxruntime, `ortboost doctor` and the quickstart run.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]


class CheckError(Exception):
    """A failed check; the message says what and where."""


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """The standard output of a command that must succeed."""
    # Do not import anything from the checkout by accident.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CheckError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment(folder: Path, *packages: str | Path) -> Path:
    """A new virtual environment with some packages; the path of its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    pip = (python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    run(*pip, "-c", ROOT / "constraints.txt", *packages)
    return python


def build(out: Path, work: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it."""
    shutil.rmtree(out, ignore_errors=True)
    python = environment(work / "build", "build", "twine")
    run(python, "-m", "build", "--outdir", out)  # the wheel is made from the sdist
    run(python, "-m", "twine", "check", "--strict", *out.iterdir())
    run(python, "-m", "build", "--wheel", "--outdir", work / "direct")
    [wheel], [sdist] = out.glob("*.whl"), out.glob("*.tar.gz")
    [direct] = (work / "direct").glob("*.whl")
    if contents(wheel) != contents(direct):
        raise CheckError("The wheel made from the sdist differs from the one of the checkout.")
    return wheel, sdist


def contents(wheel: Path) -> dict[str, int]:
    """Every file of a wheel with its checksum."""
    with zipfile.ZipFile(wheel) as file:
        return {info.filename: info.CRC for info in file.infolist()}


def check_contents(wheel: Path) -> None:
    """Check that the wheel contains the package as tracked by git, the cards, and its metadata."""
    tracked = run("git", "ls-files", "ortboost", "docs/cards").splitlines()
    expected = {path.replace("docs/cards/", "ortboost/_cards/") for path in tracked}
    found = {name for name in contents(wheel) if ".dist-info/" not in name}
    if found != expected:
        lines = [f"missing: {name}" for name in sorted(expected - found)]
        lines += [f"too many: {name}" for name in sorted(found - expected)]
        raise CheckError("\n".join([f"{wheel.name} does not hold what git holds.", *lines]))


def check_changelog(wheel: Path) -> None:
    """Check that the changelog has a dated section for the version of the wheel."""
    version = wheel.name.split("-")[1]
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE):
        raise CheckError(f"CHANGELOG.md has no line '## [{version}] - YEAR-MONTH-DAY'.")


def check_installed(wheel: Path, work: Path) -> str:
    """Run doctor and the quickstart with the installed wheel, outside the checkout."""
    python = environment(work / "empty", f"{wheel}[ort]")
    away = work / "away"
    (away / "tools").mkdir(parents=True)
    (away / "models").mkdir()
    shutil.copy(ROOT / "tools" / "quickstart.py", away / "tools")
    for name in ("lenet5.onnx", "digits.npz"):
        shutil.copy(ROOT / "models" / name, away / "models")
    home = run(python, "-I", "-c", "import ortboost; print(ortboost.__file__)", cwd=away)
    if not Path(home.strip()).is_relative_to(work):
        raise CheckError(f"The installed package was not taken, but {home}")
    command = python.parent / "ortboost"
    run(command, "doctor", cwd=away)
    if "less-bn" not in run(command, "list", cwd=away):
        raise CheckError("`ortboost list` does not show the cards that the wheel carries.")
    return run(python, "-I", away / "tools" / "quickstart.py", "--epochs", "5", cwd=away)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where they go (dist)")
    parser.add_argument("--release", action="store_true", help="the changelog must be dated")
    options = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder:
            wheel, sdist = build(options.out.resolve(), Path(folder))
            check_contents(wheel)
            if options.release:
                check_changelog(wheel)
            print(check_installed(wheel, Path(folder)))
    except CheckError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in (wheel, sdist):
        print(f"{path}  {path.stat().st_size / 1e3:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
