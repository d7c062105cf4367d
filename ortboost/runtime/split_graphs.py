"""The two graphs of a data-parallel step, and the buffers that are all-reduced between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray

from ortboost.core.errors import ModelError
from ortboost.program import names
from ortboost.program.catalogue import TensorSpec, read_catalogue
from ortboost.program.segments import order_exchanges, order_gradients, place_gradients
from ortboost.program.split import SplitStep, cut_name
from ortboost.runtime.exchange import Exchange
from ortboost.runtime.peepholes import for_device
from ortboost.runtime.process_group import Buffer, Handle, ProcessGroup, WireType
from ortboost.runtime.segmented_graph import SegmentedGraph
from ortboost.runtime.state import DeviceState
from ortboost.runtime.update_graph import UpdateGraph

__all__ = ["SplitGraphs"]

_BUCKET: Final = 25 * 2**20  # bytes; the default of torch's DistributedDataParallel
_SHORT: Final = 4 * 2**20  # bytes of gradients up to which a message less saves time
_NUMBERS: Final = "ortboost/numbers"  # in the buffer of gradients; not a tensor of the graphs

_Bucket: TypeAlias = tuple[np.dtype[Any], dict[str, tuple[int, ...]]]
"""A dtype, and the shapes of the tensors that share one buffer, by name."""


class SplitGraphs:
    """The two opened graphs of a step, and the buffers between them.

    Args:
        split: The two graphs.
        state: The state of the program.
        group: All processes.
        server: The processes that sum gradients: all, or with AdaSum those of one server.
        wire: The type in which gradients are sent.
        segments: Bytes of gradients to the number of segments of the backward pass.
        threads: Intra-op threads.
        numbers: How many numbers :meth:`sum_at_once` exchanges beside the loss and the metrics;
            ``None`` not to use it.

    Attributes:
        in_one_message: Whether gradients and a few numbers are all that is exchanged, and are few
            enough for a single message; see :meth:`sum_at_once`.
    """

    def __init__(
        self,
        split: SplitStep,
        state: DeviceState,
        *,
        group: ProcessGroup,
        server: ProcessGroup,
        wire: WireType,
        segments: Callable[[int], int],
        threads: int | None,
        numbers: int | None,
    ) -> None:
        first, second = read_catalogue(split.gradients), read_catalogue(split.update)
        # Of the first graph's outputs, those for the caller: the loss and metrics.
        cut = {s.name for s in (*split.summed, *split.averaged, *split.checks, *split.kept)}
        cut |= {cut_name(spec.name) for spec in split.exchanged}
        self.shown = tuple(spec for spec in first.outputs if spec.name not in cut)
        self.rates = tuple(spec.name for spec in second.hyper)
        self._state, device = state, state.device
        self._raw = [spec.name for spec in split.kept if spec.name.startswith(names.RAW)]
        plan = _Plan.of(split, device, threads, segments)
        self.exchanges = [Exchange(group, split.exchanged, level, device) for level in plan.levels]
        # The buffers: outputs of the first graph, summed in place, and inputs of the second.
        sums = plan.buckets({spec.name: spec for spec in split.summed})
        one_message = wire == "float32" and server is group and _fits_one_message(split, sums)
        if numbers is not None and one_message:
            sums[0][0][1][_NUMBERS] = (numbers + len(self.shown),)
        self._sums = [
            [Buffer(server, shapes, dtype, device, wire) for dtype, shapes in part] for part in sums
        ]

        def buffers(specs: Iterable[TensorSpec]) -> list[Buffer]:
            return [Buffer(group, shapes, dtype, device) for dtype, shapes in _buckets([*specs])]

        self.means, self._checks = buffers(split.averaged), buffers(split.checks)
        self._own = buffers(spec for spec in split.kept if spec.name not in self._raw)
        self._statistics = buffers(spec for spec in split.kept if spec.name in self._raw)
        summed = [buffer for part in self._sums for buffer in part]
        summed += [exchange.buffer for exchange in self.exchanges]
        rest = (*self.means, *self._checks, *self._own, *self._statistics)
        self._placed = {name: buffer for buffer in (*summed, *rest) for name in buffer.names}
        self.gradients = SegmentedGraph(
            plan.form,
            first,
            state,
            plan.ends(),
            threads=threads,
            placed=self._placed,
            draws_first=not plan.levels,
        )
        self.update = UpdateGraph(split.update, state, group, threads=threads, placed=self._placed)
        # Where the update exchanges sums, too, one message less hardly matters.
        self.in_one_message = numbers is not None and one_message and not self.update.exchanges

    def seed(self, seed: int | None, segment: int) -> int | None:
        """The seed of a segment: without exchanges, only the first draws random numbers."""
        if seed is None or (segment and not self.exchanges):
            return None
        return (seed + segment * 2**32) % 2**63  # the runtime counts on from a seed

    def exchange(self, segment: int, weight: float | None) -> None:
        """Sum the exchange points between this segment and the next; see :class:`Exchange`."""
        if segment < len(self.exchanges):
            self.exchanges[segment].run(weight)

    def spread_statistics(self, share: float) -> None:
        """Give all processes the same new statistics; ``share`` is zero if this one has none."""
        for buffer in self._statistics:
            buffer.scale(share)
            buffer.start_sum().wait()

    def clear(self, *, empty: bool) -> None:
        """The outputs for a part without labels: no 0 / 0 among the means of its gradients.

        A part that is ``empty`` has no gradients either; its statistics stay unchanged.
        """
        for buffer in self.means:
            buffer.drop_not_finite()
        if not empty:
            return
        for buffer in (*self._checks, *self._own):
            buffer.scale(0.0)
        for name in self._raw:
            self._placed[name].write(name, self._state.read(name.removeprefix(names.RAW)))

    def sum_at_once(self, share: float, *numbers: ArrayLike) -> list[NDArray[np.float64]]:
        """Sum the weighted gradients in place, and some numbers, in one message.

        ``share`` is the weight of this process's gradients. The results are the sums of the
        vectors, which have ``numbers`` numbers in all, and one number for each of ``shown``.
        """
        ((buffer,),) = self._sums
        buffer.scale(share)
        buffer.write(_NUMBERS, np.concatenate(numbers))
        buffer.start_sum().wait()
        ends = np.cumsum([np.size(vector) for vector in numbers])
        return np.split(buffer.read(_NUMBERS).astype(np.float64), ends[:-1])

    def scale_sums(self, factor: float) -> None:
        """Multiply the summed gradients of :meth:`sum_at_once`."""
        ((buffer,),) = self._sums
        buffer.scale(factor)

    def start_sums(self, segment: int, share: float) -> list[Handle]:
        """Weight the gradients of a segment and start their all-reduce."""
        for buffer in self._sums[segment]:
            buffer.scale(share)
        return [buffer.start_sum() for buffer in self._sums[segment]]

    def start_rest(self, share: float, of_means: float) -> list[Handle]:
        """Weight the other values, and start the all-reduce of those that are exchanged."""
        for buffer in self._own:
            buffer.scale(share)
        for buffer in self.means:
            buffer.scale(of_means)
        return [buffer.start_sum() for buffer in (*self.means, *self._checks)]


@dataclass(frozen=True)
class _Plan:
    """How the gradient graph is divided into segments.

    Segments end at exchange points if there are any, else where a group of gradients is ready.

    Args:
        form: The graph, in the form of the device.
        parts: For each segment the groups of gradients that it completes.
        levels: The exchange points after each segment; none after the last.
    """

    form: ir.Model
    parts: Sequence[Sequence[Sequence[str]]]
    levels: Sequence[Sequence[str]]

    @classmethod
    def of(
        cls, split: SplitStep, device: str, threads: int | None, segments: Callable[[int], int]
    ) -> _Plan:
        form = for_device(split.gradients, device, threads=threads)
        sizes = {spec.name: _bytes(spec) for spec in split.summed}
        groups = order_gradients(form, sizes, segments(sum(sizes.values())))
        levels = order_exchanges(form, [spec.name for spec in split.exchanged])
        parts = place_gradients(form, levels, groups) if levels else [[group] for group in groups]
        return cls(form, parts, levels)

    def buckets(self, specs: Mapping[str, TensorSpec]) -> list[list[_Bucket]]:
        """The buckets of gradients that each segment completes."""
        return [
            [
                bucket
                for group in part
                for bucket in _buckets([specs[name] for name in reversed(group)])
            ]
            for part in self.parts
        ]

    def ends(self) -> list[list[str]]:
        """The last outputs of each segment: its gradients, and the values exchanged after it."""
        gradients = [[name for group in part for name in group] for part in self.parts]
        return [
            [*names, *map(cut_name, level)]
            for names, level in itertools.zip_longest(gradients, self.levels, fillvalue=())
        ]


def _fits_one_message(split: SplitStep, sums: Sequence[Sequence[_Bucket]]) -> bool:
    """Whether gradients are all that this step exchanges, and are few enough for one message."""
    others = split.averaged or split.checks or split.exchanged
    dtypes = [dtype for part in sums for dtype, _ in part]
    return dtypes == [np.float32] and not others and sum(map(_bytes, split.summed)) <= _SHORT


def _buckets(specs: Sequence[TensorSpec]) -> list[_Bucket]:
    """Group tensors into buckets by dtype and size, last first, as gradients become ready."""
    found: list[_Bucket] = []
    filled: dict[np.dtype[Any], int] = {}
    for spec in reversed(specs):
        size = _bytes(spec)
        if spec.dtype not in filled or filled[spec.dtype] + size > _BUCKET:
            found.append((spec.dtype, {}))
            filled[spec.dtype] = 0
        filled[spec.dtype] += size
        next(part for dtype, part in reversed(found) if dtype == spec.dtype)[spec.name] = (
            _fixed_shape(spec)
        )
    return found


def _bytes(spec: TensorSpec) -> int:
    return math.prod(_fixed_shape(spec)) * spec.dtype.itemsize


def _fixed_shape(spec: TensorSpec) -> tuple[int, ...]:
    shape = tuple(d for d in spec.shape if isinstance(d, int))
    if len(shape) != len(spec.shape):
        raise ModelError(
            f"The shape of '{spec.name}' is not static.",
            where=f"{spec.shape}",
            fix="This is a bug in ortboost; please report it.",
        )
    return shape
