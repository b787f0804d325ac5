"""A fork that an agent makes of its process: it has no part in the run, nor in the slot of the worker."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def only_in_this_process() -> Iterator[None]:
    """End a fork that comes to the end of this block, as Python ends a program: its answer and its errors are nobody's."""
    own = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != own:
            _end(error)
        raise
    if os.getpid() != own:
        _end(None)


def _end(error: BaseException | None) -> None:
    code = 0 if error is None else 1
    with suppress(Exception):  # an agent may have closed what is written to
        if isinstance(error, SystemExit) and isinstance(error.code, int | None):
            code = (error.code or 0) & 255
        elif isinstance(error, SystemExit):
            print(error.code, file=sys.stderr)
        elif error is not None:
            traceback.print_exception(error)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
