"""The options of an agent that is a Python function."""

from __future__ import annotations

from pydantic import field_validator

from orchestrator.agents.options.base import ExecutorOptions, Reference


class PythonOptions(ExecutorOptions):
    """`function` is called with the context."""

    #: ``module:function``, or the function itself.
    function: Reference

    @field_validator("function")
    @classmethod
    def _check(cls, value: object) -> object:
        if not callable(value):
            raise ValueError('the python executor needs function = "module:function"')  # noqa: TRY004
        return value
