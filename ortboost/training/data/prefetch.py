"""Reading ahead in background threads."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from ortboost.core.errors import UsageError

__all__ = ["prefetch", "work_ahead"]

T = TypeVar("T")
_JOIN_SECONDS = 5.0


class _Worker(Generic[T]):
    """A thread that fills a bounded buffer from an iterable."""

    def __init__(self, iterable: Iterable[T], depth: int) -> None:
        self._iterable, self._depth = iterable, depth
        self._items: deque[T] = deque()
        self._changed = threading.Condition()
        self._stopped = self._ended = False
        self._error: BaseException | None = None
        # A daemon thread, so that an iterable that blocks forever cannot keep the process alive.
        self._thread = threading.Thread(target=self._fill, name="ortboost-prefetch", daemon=True)
        self._thread.start()

    def _fill(self) -> None:
        iterator: Iterator[T] = iter(())
        try:
            iterator = iter(self._iterable)
            for item in iterator:
                with self._changed:
                    self._changed.wait_for(lambda: self._stopped or len(self._items) < self._depth)
                    if self._stopped:
                        return
                    self._items.append(item)
                    self._changed.notify_all()
        except BaseException as error:  # raised again in the reader's thread
            self._error = error
        finally:
            if self._stopped and hasattr(iterator, "close"):
                iterator.close()
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def items(self) -> Generator[T, None, None]:
        """The items in order; an exception of the iterable is raised in its place."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items or self._ended)
                if not self._items:
                    if self._error is not None:
                        raise self._error
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item

    def stop(self) -> None:
        """Stop the thread after the item that it is reading."""
        with self._changed:
            self._stopped = True
            self._items.clear()
            self._changed.notify_all()
        self._thread.join(_JOIN_SECONDS)


def prefetch(iterable: Iterable[T], depth: int = 2) -> Generator[T, None, None]:
    """Iterate in the same order while a thread reads up to ``depth`` items ahead.

    The thread starts when the first item is requested, and has ended when the generator is
    exhausted, closed or fails. An exception of the iterable is raised here with its traceback,
    after the items before it. With a depth of 0 the caller's thread reads.

    Raises:
        UsageError: ``depth`` is negative.
    """
    if depth < 0:
        raise UsageError(
            "The prefetch depth is negative.", where="depth", fix="Use 0 (off) or more."
        )
    return _direct(iterable) if depth == 0 else _threaded(iterable, depth)


def _direct(iterable: Iterable[T]) -> Generator[T, None, None]:
    yield from iterable


def _threaded(iterable: Iterable[T], depth: int) -> Generator[T, None, None]:
    worker = _Worker(iterable, depth)
    try:
        yield from worker.items()
    finally:
        worker.stop()


def work_ahead(
    tasks: Iterable[Callable[[], T]], workers: int, depth: int = 2
) -> Generator[T, None, None]:
    """The results of tasks in order, while threads work on the next ones.

    The results do not depend on the number of threads, provided that the tasks are independent.
    Threads, not processes: the slow operations (decoding images, decompressing) release the GIL,
    and no array has to be copied between processes. The threads have ended when the generator is
    exhausted, closed or fails.

    Args:
        tasks: Functions without arguments.
        workers: Number of threads, 1 or more.
        depth: Number of finished results to hold in addition to those in progress; 0 runs the tasks
            in the caller's thread.

    Example:
        >>> list(work_ahead([lambda: 1, lambda: 2, lambda: 3], workers=2))
        [1, 2, 3]
    """
    if depth == 0:
        for task in tasks:
            yield task()
        return
    waiting, left = deque[Future[T]](), iter(tasks)
    with ThreadPoolExecutor(workers, thread_name_prefix="ortboost-read") as pool:
        try:
            # One more is submitted before the first result is passed on.
            for task in itertools.islice(left, workers + depth - 1):
                waiting.append(pool.submit(task))
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(task) for task in itertools.islice(left, 1))
                yield result
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
