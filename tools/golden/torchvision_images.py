"""Make ``tests/golden/torch/images.npz``: what torchvision does to images of Pillow.

Arrays of the file:

=====================  =======================================================================
``rgb``, ``gray``      uint8 [37, 53, 3] and [41, 30]: the images
``cases``              JSON: name to image, text of our settings and the size of the input
``<case>``             float32 [C, H, W]: Resize, CenterCrop, ToTensor, Normalize
``uniform``            float64 [200, 44]: draws from [0, 1), multiples of 2**-10
``boxes``              int64 [200, 7]: width, height, least share in 1/1000, then the box
                       of RandomResizedCrop on these draws
``jitter``             uint8 [3, 37, 53, 3]: brightness 1.4, contrast 0.6, saturation 1.7
``versions``           of torchvision and Pillow
=====================  =======================================================================

The shipped file was made with torchvision 0.28.0 and Pillow 13.0.0.

Examples:
    From the root of the repository, with torchvision and Pillow::

        python -m tools.golden.torchvision_images
"""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import PIL
import torch
import torchvision
from PIL import Image
from torchvision import transforms as T  # noqa: N812 - as torchvision's pages call it
from torchvision.transforms import functional as F  # noqa: N812

OUT = Path("tests/golden/torch/images.npz")
IMAGENET = T.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CASES = {
    "shorter side": (
        "rgb",
        "resize=24,normalize=imagenet",
        [3, 20, 17],
        [T.Resize(24), T.CenterCrop((20, 17)), T.ToTensor(), IMAGENET],
    ),
    "larger": (
        "rgb",
        "resize=45,interpolation=bicubic",
        [3, 40, 40],
        [T.Resize(45, T.InterpolationMode.BICUBIC), T.CenterCrop(40), T.ToTensor()],
    ),
    "both sides": (
        "rgb",
        "resize=19x31,interpolation=nearest,normalize=0.25/0.5",
        [3, 16, 31],
        [
            T.Resize((19, 31), T.InterpolationMode.NEAREST),
            T.CenterCrop((16, 31)),
            T.ToTensor(),
            T.Normalize([0.25] * 3, [0.5] * 3),
        ],
    ),
    "of gray": (
        "gray",
        "resize=21,interpolation=lanczos,normalize=0.1307/0.3081",
        [1, 20, 20],
        [
            T.Resize(21, T.InterpolationMode.LANCZOS),
            T.CenterCrop(20),
            T.ToTensor(),
            T.Normalize([0.1307], [0.3081]),
        ],
    ),
    "to gray": (
        "rgb",
        "resize=22,color=gray",
        [1, 22, 22],
        [T.Grayscale(), T.Resize(22), T.CenterCrop(22), T.ToTensor()],
    ),
}


def pictures() -> dict[str, np.ndarray]:
    rng = np.random.Generator(np.random.PCG64(0))
    y, x = np.mgrid[0:37, 0:53]
    smooth = np.stack([x * 4, y * 6, 255 - (x + y) * 2], axis=-1)
    rgb = np.clip(smooth + rng.integers(-40, 41, smooth.shape), 0, 255).astype(np.uint8)
    return {"rgb": rgb, "gray": rng.integers(0, 256, (41, 30), dtype=np.uint8)}


def boxes(uniform: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """RandomResizedCrop with its draws replaced: uniform numbers, and whole ones made of them."""
    found = []
    for row in uniform:
        width, height = rng.integers(1, 80, 2).tolist()
        least = int(rng.choice([80, 350, 1000]))
        draws = iter(row.tolist())

        def number(low: float, high: float, draws=draws) -> float:
            return low + (high - low) * next(draws)

        def draw_uniform(self: torch.Tensor, low: float, high: float, f=number) -> torch.Tensor:
            return torch.tensor(f(float(low), float(high)), dtype=torch.float64)

        def draw_integer(low: int, high: int, size: object, f=number) -> torch.Tensor:
            return torch.tensor([int(f(low, high))])

        with (
            patch.object(torch.Tensor, "uniform_", draw_uniform),
            patch.object(torch, "randint", draw_integer),
        ):
            image = Image.new("L", (width, height))
            top, left, tall, wide = T.RandomResizedCrop.get_params(
                image, (least / 1000, 1.0), (3 / 4, 4 / 3)
            )
        found.append([width, height, least, left, top, left + wide, top + tall])
    return np.array(found, np.int64)


def main() -> None:
    images = pictures()
    opened = {name: Image.fromarray(pixels) for name, pixels in images.items()}
    arrays = dict(images)
    for name, (image, _, _, steps) in CASES.items():
        arrays[name] = T.Compose(steps)(opened[image]).numpy()
    rng = np.random.Generator(np.random.PCG64(1))
    arrays["uniform"] = rng.integers(0, 1024, (200, 44)) / 1024
    arrays["boxes"] = boxes(arrays["uniform"], rng)
    rgb = opened["rgb"]
    varied = (
        F.adjust_brightness(rgb, 1.4),
        F.adjust_contrast(rgb, 0.6),
        F.adjust_saturation(rgb, 1.7),
    )
    arrays["jitter"] = np.stack([np.asarray(one) for one in varied])
    cases = {name: case[:3] for name, case in CASES.items()}
    arrays["cases"] = np.array(json.dumps(cases))
    arrays["versions"] = np.array(
        f"torchvision {torchvision.__version__}, Pillow {PIL.__version__}"
    )
    np.savez_compressed(OUT, **arrays)
    print(OUT, OUT.stat().st_size)


if __name__ == "__main__":
    main()
