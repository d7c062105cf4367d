"""Reading ahead: same order, honest errors, no thread left behind."""

from __future__ import annotations

import functools
import gc
import threading
import traceback

import pytest

from ortboost.core.errors import UsageError
from ortboost.training.data import prefetch
from ortboost.training.data.prefetch import work_ahead


def workers():
    return [t for t in threading.enumerate() if t.name == "ortboost-prefetch"]


@pytest.mark.parametrize("depth", [0, 1, 2, 7])
@pytest.mark.parametrize("length", [0, 1, 5, 50])
def test_order_is_kept_and_the_thread_ends(depth, length):
    assert list(prefetch(range(length), depth)) == list(range(length))
    assert not workers()


def test_it_reads_at_most_depth_items_ahead():
    read, enough = [], threading.Event()

    def source():
        for item in range(100):
            read.append(item)
            if item == 3:
                enough.set()
            yield item

    stream = prefetch(source(), 2)
    assert next(stream) == 0
    assert enough.wait(5)  # item 0 taken, 1 and 2 ready, 3 in hand
    assert len(read) == 4
    assert next(stream) == 1
    stream.close()
    assert not workers()
    assert len(read) <= 5


def failing():
    yield 1
    yield 2
    raise KeyError("inside the source")


def collect(stream, into, action=lambda item: item):
    for item in stream:
        into.append(action(item))


@pytest.mark.parametrize("depth", [0, 2])
def test_an_error_comes_after_the_items_before_it_with_its_traceback(depth):
    got = []
    with pytest.raises(KeyError, match="inside the source") as caught:
        collect(prefetch(failing(), depth), got)
    assert got == [1, 2]
    assert "failing" in "".join(traceback.format_tb(caught.value.__traceback__))
    assert not workers()


def test_closing_closes_the_source_in_its_thread():
    closed = []

    def source():
        try:
            yield from range(100)
        finally:
            closed.append(threading.current_thread().name)

    stream = prefetch(source(), 1)
    next(stream)
    stream.close()
    assert closed == ["ortboost-prefetch"]
    assert not workers()


def test_an_abandoned_loop_leaves_no_thread():
    with pytest.raises(ZeroDivisionError):
        collect(prefetch(range(100), 3), [], lambda item: item / 0)
    gc.collect()
    assert not workers()


def test_nothing_starts_before_the_first_item():
    stream = prefetch(range(3), 2)
    assert not workers()
    stream.close()


def test_an_iterable_that_cannot_be_iterated_fails_in_the_reader():
    with pytest.raises(TypeError):
        list(prefetch(3, 2))  # type: ignore[arg-type]
    assert not workers()


def test_a_negative_depth_is_refused():
    with pytest.raises(UsageError, match="negative"):
        prefetch([], -1)


def readers():
    return [t for t in threading.enumerate() if t.name.startswith("ortboost-read")]


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_the_tasks(workers, depth):
    late = threading.Event()

    def task(number):
        if number == 0 and workers > 1 and depth:
            assert late.wait(20)  # until a later task is done
        if number == 1:
            late.set()
        return number

    tasks = [functools.partial(task, number) for number in range(9)]
    assert list(work_ahead(tasks, workers, depth)) == list(range(9))
    assert not readers()


def test_tasks_to_come_are_limited_and_left_when_it_is_closed():
    begun, taken, hold = [], [], threading.Event()

    def task(number):
        begun.append(number)
        hold.wait(20 if number else 0)
        return number

    def tasks():
        for number in range(100):
            taken.append(number)
            yield functools.partial(task, number)

    stream = work_ahead(tasks(), 2, 2)
    assert next(stream) == 0
    assert taken == [0, 1, 2, 3]  # three at once, and one in the place of the first
    hold.set()
    stream.close()
    for thread in readers():
        thread.join(20)
    assert max(begun) <= 3


def test_an_error_of_a_task_comes_after_the_results_before_it():
    stream = work_ahead([lambda: 1, lambda: 1 // 0, lambda: 3], 2)
    assert next(stream) == 1
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert not readers()
