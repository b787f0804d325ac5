"""Work in two threads: what comes of it is what would come of it in one."""

from __future__ import annotations

import os
import threading

import pytest

from workers.halves import FEW, in_halves


@pytest.mark.parametrize("many", [0, 1, FEW, FEW + 1, 9])
def test_results_come_in_the_order_of_the_things(many: int) -> None:
    assert in_halves(lambda thing: thing * 2, range(many)) == [thing * 2 for thing in range(many)]


def test_both_halves_are_at_work_at_the_same_time() -> None:
    """Each waits for the other; the few are not worth a second thread."""
    meeting = threading.Barrier(2, timeout=60)
    threads = in_halves(lambda _: (meeting.wait(), threading.get_ident())[1], range(FEW + 1))
    assert threads[0] == threads[1] == threading.get_ident() != threads[2] == threads[3]
    assert set(in_halves(lambda _: threading.get_ident(), range(FEW))) == {threading.get_ident()}


@pytest.mark.parametrize("wrong", [{1}, {7}, {1, 7}])
def test_the_first_thing_that_fails_is_the_one_that_is_told(wrong: set[int]) -> None:
    def act(thing: int) -> int:
        if thing in wrong:
            raise ValueError(thing)
        return thing

    with pytest.raises(ValueError, match=f"^{min(wrong)}$"):
        in_halves(act, range(8))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_a_second_thread_of_its_own() -> None:
    """The processes of a pool are forks of one that may have signed."""
    assert in_halves(str, range(8)) == list("01234567")
    child = os.fork()
    if child == 0:
        threading.Timer(60, os._exit, (1,)).start()
        os._exit(0 if in_halves(str, range(8)) == list("01234567") else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
