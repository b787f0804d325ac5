"""Exit codes of the commands. `docs/reference/cli.md` has this table; a test holds the commands to it."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import click


class Exit(IntEnum):
    """The exit codes of all commands."""

    DONE = 0
    NO = 1
    REFUSED = 2
    NOT_YET = 3
    NO_STACK = 4
    BUG = 70
    INTERRUPTED = 130


#: What each says, for people.
MEANINGS: Final = {
    Exit.DONE: "yes, or done; `up`: stopped as it was asked to, also by Ctrl-C",
    Exit.NO: "no: the session failed, was stopped or deleted; or what was checked does not hold",
    Exit.REFUSED: "refused, or a part of it: wrong usage, or something that is not there, not allowed or not possible now. One line on "
    "standard error says why; `doctor`: it could not look",
    Exit.NOT_YET: "not yet: the session goes on, no reply has come, or `--timeout` has passed; `doctor`: nothing is broken, and "
    "something is stuck",
    Exit.NO_STACK: "no stack answers: none runs on the data folder, or its server is away or takes no commands; try again later",
    Exit.BUG: "a fault in the command itself, with its traceback; please report it",
    Exit.INTERRUPTED: "interrupted while it waited or worked; the session that it waited for continues",
}


class Failed(click.ClickException):
    """The request of a command has failed."""

    exit_code = Exit.NO


class Refused(click.ClickException):
    """A command is not carried out as it was given."""

    exit_code = Exit.REFUSED


class NotYet(click.ClickException):
    """The event for which a command waits has not come."""

    exit_code = Exit.NOT_YET


class NoAnswer(click.ClickException):
    """No server carries out what a command asks for."""

    exit_code = Exit.NO_STACK
