"""Instruments Celery as `opentelemetry-instrumentation-celery` does, by that package itself where it is installed.

This text also begins the file of the agents of a test, so it imports nothing of the tests.
"""

from __future__ import annotations

from typing import Any

from celery import signals
from opentelemetry import trace
from opentelemetry.propagate import extract, inject
from opentelemetry.sdk.trace import TracerProvider


class _Signals:
    """A span for each publish, whose context goes into the headers, and one for each task, below what the headers say."""

    def instrument(self, tracer_provider: TracerProvider) -> None:
        tracer = tracer_provider.get_tracer("celery")
        self._spans: dict[str, Any] = {}

        def begin(name: str, key: str, context: Any = None) -> None:
            span = tracer.start_span(name, context=context)
            within = trace.use_span(span, end_on_exit=True)
            within.__enter__()
            self._spans[key] = within

        def before_publish(sender: str, headers: dict[str, Any], **_: Any) -> None:
            begin(f"apply_async/{sender}", f"publish {headers['id']}")
            inject(headers)

        def after_publish(headers: dict[str, Any], **_: Any) -> None:
            self._end(f"publish {headers['id']}")

        def before_run(task_id: str, task: Any, **_: Any) -> None:
            carried = getattr(task.request, "traceparent", None)
            begin(f"run/{task.name}", task_id, extract({"traceparent": carried} if carried else {}))

        def after_run(task_id: str, **_: Any) -> None:
            self._end(task_id)

        signals.before_task_publish.connect(before_publish, weak=False)
        signals.after_task_publish.connect(after_publish, weak=False)
        signals.task_prerun.connect(before_run, weak=False)
        signals.task_postrun.connect(after_run, weak=False)
        self._connected = (
            (signals.before_task_publish, before_publish),
            (signals.after_task_publish, after_publish),
            (signals.task_prerun, before_run),
            (signals.task_postrun, after_run),
        )

    def uninstrument(self) -> None:
        for signal, receiver in self._connected:
            signal.disconnect(receiver)

    def _end(self, key: str) -> None:
        self._spans.pop(key).__exit__(None, None, None)


def instrumentor() -> Any:
    """Return what instruments Celery in this process."""
    try:
        from opentelemetry.instrumentation.celery import CeleryInstrumentor
    except ImportError:
        return _Signals()
    return CeleryInstrumentor()
