r"""The sliding window of convolutions and pools, and transposed convolution.

Along each spatial axis, with `k` taps, stride `s`, dilation `d` and pads `p` before and `q` after,
an axis of length `L` has `O = floor((L + p + q - (k - 1) d - 1) / s) + 1` windows (`ceil` with
`ceil_mode`), and window `o` sees the positions `o s - p + t d` for the taps `t < k`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir

from ortboost.autodiff.padding import same_pads
from ortboost.graph.query import fixed_lengths, known_shape
from ortboost.graph.rewriting import Refusal, Site

__all__ = ["Window", "transposed_conv", "window_of"]

Dim = int | str | None


@dataclass(frozen=True)
class Window:
    """The attributes of a window, one value per spatial axis each.

    Args:
        kernel: Number of taps, `k`.
        strides: `s`.
        dilations: `d`.
        begins: Padding before, `p`.
        ends: Padding after, `q`.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def spatial(self) -> int:
        """Number of spatial axes."""
        return len(self.kernel)

    @property
    def pads(self) -> list[int]:
        """All begins, then all ends, as in the ``pads`` attribute."""
        return [*self.begins, *self.ends]

    @property
    def padded(self) -> bool:
        """Whether there is any padding."""
        return any(self.pads)

    @property
    def reaches(self) -> tuple[int, ...]:
        """Positions from the first to the last tap, `(k - 1) d + 1`."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))

    @property
    def pointwise(self) -> bool:
        """Whether window `o` consists only of position `o`."""
        ones = (1,) * self.spatial
        return self.kernel == ones and self.strides == ones and not self.padded

    def attributes(self) -> dict[str, Any]:
        """The attributes of a convolution or pool with this window."""
        return {
            "kernel_shape": list(self.kernel),
            "strides": list(self.strides),
            "dilations": list(self.dilations),
            "pads": self.pads,
        }

    def rest(self, axis: int, length: Dim) -> int | None:
        """Positions at the end of a padded axis that no window covers; ``None`` if unknown."""
        if self.strides[axis] == 1:
            return 0
        if not isinstance(length, int):
            return None
        padded = length + self.begins[axis] + self.ends[axis]
        return (padded - self.reaches[axis]) % self.strides[axis]


def window_of(site: Site, weight: int | None = None) -> Window:
    """The window of a node, with `auto_pad` converted to pads.

    The shape of the input with the index ``weight`` gives the kernel if the attribute is missing.

    Raises:
        Refusal: The sizes are unknown, or the attribute is not the shape of the weight.
    """
    spatial = site.rank() - 2
    kernel = site.integers("kernel_shape")
    if weight is not None:
        dims = (known_shape(site.input(weight)) or ())[2:]
        stored = tuple(dim for dim in dims if isinstance(dim, int))
        if kernel is not None and len(stored) == len(dims) > 0 and kernel != stored:
            raise Refusal(
                f"its kernel_shape {list(kernel)} is not that of its weight {list(stored)}"
            )
        kernel = stored if kernel is None else kernel
    if kernel is None or len(kernel) != spatial or spatial < 1:
        raise Refusal("its kernel shape is unknown; give the shapes of the model's inputs")
    pads = same_pads(site)
    return Window(
        kernel=kernel,
        strides=site.integers("strides") or (1,) * spatial,
        dilations=site.integers("dilations") or (1,) * spatial,
        begins=tuple(pads[:spatial]),
        ends=tuple(pads[spatial:]),
    )


def _crop(site: Site, value: ir.Value, like: ir.Value, shape: tuple[Dim, ...]) -> ir.Value:
    """The first positions of ``value`` along the spatial axes, as many as ``like`` has."""
    axes = range(2, len(shape))
    lengths = fixed_lengths(shape[2:])
    ends = site.shape_of(like, 2) if lengths is None else site.ints(*lengths)
    starts = site.ints(*[0] * len(axes))
    return site.op("Slice", value, starts, ends, site.ints(*axes), shape=shape)


def transposed_conv(
    site: Site,
    g: ir.Value,
    weight: ir.Value,
    window: Window,
    like: ir.Value,
    groups: int = 1,
    *,
    overhang: bool = False,
) -> ir.Value:
    r"""The transpose of a convolution: each window adds its value to its positions.

        gx[n, c, o s - p + t d] += sum_m g[n, m, o] w[m, c, t]

    ConvTranspose alone omits the positions after the last window: ``output_padding`` adds exactly
    these if their number is known, else as many as possible, which are then cropped.

    Args:
        site: Receives the nodes.
        g: ``[N, M, O...]``.
        weight: ``[M, C/groups, k...]``, the weight of the forward convolution.
        window: The window of the forward convolution.
        like: Value with the shape of the result, ``[N, C, L...]``.
        groups: Number of groups of the forward convolution.
        overhang: Whether windows may extend past the end of the image, regardless of the padding.
    """
    shape = known_shape(like)
    if shape is None:
        raise Refusal(
            f"the rank of '{like.name}' is unknown; give the shapes of the model's inputs"
        )
    rests: list[int | None]
    rests = [window.rest(axis, shape[2 + axis]) for axis in range(window.spatial)]
    exact = all(rest is not None for rest in rests) and not overhang
    if overhang:  # without padding at the end, the crop removes what windows see beyond it
        window, rests = replace(window, ends=(0,) * window.spatial), [None] * window.spatial
    # The most that ConvTranspose allows is one less than the stride.
    extra = [s - 1 if r is None else r for s, r in zip(window.strides, rests, strict=True)]
    back = site.op(
        "ConvTranspose",
        g,
        weight,
        group=groups,
        output_padding=extra,
        **window.attributes(),
        shape=shape if exact else None,
    )
    return back if exact else _crop(site, back, like, shape)
