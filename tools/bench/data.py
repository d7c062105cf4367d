"""How fast images are read, by threads and by processes, and how long steps wait for their data.

Reading: one epoch of JPEG files of 400x300 pixels as random resized crops of 224x224, by threads of
one process (:func:`~ortboost.training.data.prefetch.work_ahead`) and by processes that send arrays
back through pipes, as loaders with worker processes do. All take turns; a ratio is the median of
the ratios of the rounds. Images a second are wall clock.

Waiting: ``data_wait`` of short trainings with the default number of threads, and with one.

Examples:
    From the root of the repository::

        python -m tools.bench.data --out data.json
        python -m tools.bench.data --photos resnet50.onnx    # also a model of 224x224 pixels
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

import ortboost as ob
from ortboost.training.data import open_source
from ortboost.training.data.images import parse_augment, parse_images
from ortboost.training.data.prefetch import work_ahead
from ortboost.training.data.sources import ArraySource
from ortboost.training.protocols import InputSpec
from tools.bench.report import ROOT, environment, heading, table, write_json

INPUTS = [
    InputSpec("x", np.dtype(np.float32), ("N", 3, 224, 224)),
    InputSpec("labels", np.dtype(np.int64), ("N",)),
]
SOURCE: ArraySource  # of the processes, which are forked


def pictures(folder: Path, number: int, size: tuple[int, int], suffix: str) -> None:
    """Smooth fields with some noise: they compress about as photographs do."""
    rng = np.random.Generator(np.random.PCG64(0))
    for index in range(number):
        coarse = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
        smooth = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC))
        noisy = np.clip(smooth + rng.normal(0, 8, smooth.shape), 0, 255).astype(np.uint8)
        path = folder / f"class{index % 10}" / f"{index:05}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noisy).save(path, quality=90)


def _read(index: int) -> dict[str, np.ndarray]:
    return next(SOURCE.epoch(0, index))


def by_processes(number: int) -> Iterator[object]:
    with multiprocessing.get_context("fork").Pool(number) as pool:
        yield from pool.imap(_read, range(SOURCE.steps_per_epoch))


def seconds(batches: Iterator[object]) -> float:
    start = time.perf_counter()
    for _ in batches:
        pass
    return time.perf_counter() - start


def reading(folder: Path, rounds: int) -> dict[str, list[float]]:
    global SOURCE
    found = open_source(folder, INPUTS, "train", 16, None, shuffle=True,
                        images=parse_images("normalize=imagenet"),
                        augment=parse_augment("resized-crop,flip"))  # fmt: skip
    assert isinstance(found, ArraySource)
    SOURCE = found
    contestants: dict[str, Callable[[], Iterator[object]]] = {
        f"{n} thread{'s' * (n > 1)}": lambda n=n: work_ahead(found.tasks(0), n) for n in (1, 2, 4)
    }
    contestants["2 processes"] = lambda: by_processes(2)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, make in contestants.items():
            times[name].append(seconds(make()))
    return times


def waiting(data: Path, model: Path, batch: int, steps: int, images: bool) -> list[float]:
    """Share of the time of steps that waited, with the default number of threads and with one."""
    shares = []
    augment = "flip,crop=4" if batch > 8 else "resized-crop,flip"
    how = {"images": "normalize=imagenet", "augment": augment}
    for workers in (None, 1):
        with tempfile.TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            ob.convert(model, run)
            found = ob.train(run, data, batch_size=batch, epochs=9, max_steps=steps, progress=None,
                             threads=1, workers=workers, **(how if images else {}))  # fmt: skip
            shares.append(found.data_wait)
    return shares


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--photos", type=Path, help="a model of 224x224 pixels")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    about = environment()
    with tempfile.TemporaryDirectory() as folder:
        photos, small, packed = (
            Path(folder) / "photos",
            Path(folder) / "small",
            Path(folder) / "d.npz",
        )
        pictures(photos, 192, (400, 300), ".jpg")
        pictures(small, 1280, (32, 32), ".png")
        rng = np.random.Generator(np.random.PCG64(0))
        np.savez_compressed(
            packed,
            x=rng.integers(0, 256, (1280, 3, 32, 32), dtype=np.uint8),
            y=np.arange(1280) % 10,
        )
        times = reading(photos, arguments.rounds)
        network = ROOT / "models" / "resnet20.onnx"
        waits = {
            "compressed .npz, resnet20, batch 64": waiting(
                packed, network, 64, arguments.steps, False
            ),
            "PNG 32x32, flip and crop, resnet20, batch 64": waiting(
                small, network, 64, arguments.steps, True
            ),
        }  # fmt: skip
        if arguments.photos:
            name = f"JPEG 400x300, resized crop, {arguments.photos.stem}, batch 4"
            waits[name] = waiting(photos, arguments.photos, 4, arguments.steps // 4, True)
    first = times["1 thread"]
    rows = [
        [name, f"{192 / statistics.median(found):.0f}",
         f"{statistics.median(a / b for a, b in zip(first, found, strict=True)):.2f}"]
        for name, found in times.items()
    ]  # fmt: skip
    print(heading(about))
    print(table(["read by", "images a second", "times 1 thread"], rows))
    shares = [[name, *(f"{share:.1%}" for share in found)] for name, found in waits.items()]
    print(table(["waited for data", "default", "1 thread"], shares))
    if arguments.out:
        write_json(arguments.out, {"about": about, "reading": times, "waiting": waits})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
