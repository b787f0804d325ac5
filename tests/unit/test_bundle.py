"""The runs of one message: taken in order, given back when they would have to wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from celery.exceptions import Reject

from workers.bundle import Bundle, Ticket

TICKETS = [Ticket("leaf", f"ses_{n}", f"run_{n}") for n in range(4)]


class Returned:
    """What was given back, and when it was."""

    def __init__(self) -> None:
        self.tickets: list[Ticket] = []
        self.done = threading.Event()

    def __call__(self, rest: Sequence[Ticket]) -> None:
        self.tickets += rest
        self.done.set()


def _take_one_and_fail(opened: Bundle, error: Exception) -> None:
    with opened as bundle:
        bundle.next()
        raise error


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run is long, however slow the machine is."""
    monkeypatch.setattr("workers.bundle.RUN_S", 600.0)
    monkeypatch.setattr("workers.bundle.ALL_S", 600.0)


@pytest.mark.usefixtures("patience")
def test_short_runs_are_all_taken_in_order() -> None:
    """Nothing is given back while runs are short."""
    returned = Returned()
    with Bundle(TICKETS, returned) as bundle:
        taken = list(iter(bundle.next, None))
    assert taken == TICKETS
    assert returned.tickets == []


def test_a_long_run_lets_the_others_go() -> None:
    """While one takes its time the rest is given back, once and in order, and is not taken here any more."""
    returned = Returned()
    with Bundle(TICKETS, returned) as bundle:
        assert bundle.next() == TICKETS[0]
        assert returned.done.wait(60)
        assert bundle.next() is None
    assert returned.tickets == TICKETS[1:]


def test_an_error_lets_the_others_go() -> None:
    """Whatever ends the task, nobody else has the rest."""
    returned = Returned()
    with pytest.raises(ZeroDivisionError):
        _take_one_and_fail(Bundle(TICKETS, returned), ZeroDivisionError())
    assert returned.tickets == TICKETS[1:]


@pytest.mark.usefixtures("patience")
def test_a_rejected_message_comes_back_whole() -> None:
    """The broker sends it again, so nothing of it is given back."""
    returned = Returned()
    with pytest.raises(Reject):
        _take_one_and_fail(Bundle(TICKETS, returned), Reject("no server"))
    assert returned.tickets == []


def test_a_broker_that_takes_nothing_back_is_no_error() -> None:
    """The ledger still has the runs as queued, and the sweep sends them."""

    def refuse(_: Sequence[Ticket]) -> None:
        raise OSError("no broker")

    with pytest.raises(ZeroDivisionError):
        _take_one_and_fail(Bundle(TICKETS, refuse), ZeroDivisionError())
