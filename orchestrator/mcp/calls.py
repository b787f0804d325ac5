"""How tools call what blocks: in a thread, with errors that the model may read."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import anyio.to_thread
from mcp.server.mcpserver.exceptions import ToolError

from orchestrator.errors import OrchestraError

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What ``function`` returns. Other calls go on meanwhile.

    Raises:
        ToolError: it raised an error of ours. The client gets its sentence.
    """
    try:
        return await anyio.to_thread.run_sync(partial(function, *args, **kwargs), abandon_on_cancel=True)
    except OrchestraError as error:
        raise ToolError(str(error)) from error
