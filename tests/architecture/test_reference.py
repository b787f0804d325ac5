"""The reference fails to be written when a public name has no words of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(autouse=True)
def _generators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))


def test_a_field_without_a_comment_is_named() -> None:
    from generated_fields import Undocumented, field_table

    table = "\n".join(field_table(Explained, frozenset()))
    assert "| `above` | `int` | two lines of it |" in table
    assert "| `behind` | `str \\| None` | why |" in table
    assert "_hidden" not in table
    with pytest.raises(Undocumented, match=r"Unexplained\.silent"):
        list(field_table(Unexplained, frozenset()))


def test_a_kind_of_event_that_nobody_explains_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import generated_events
    from generated_fields import Undocumented

    for part in (generated_events.notifications, generated_events.history, generated_events.live):
        assert part()
    monkeypatch.delitem(generated_events._TRANSITIONS, "budget")
    with pytest.raises(Undocumented, match="transition: budget"):
        generated_events.transitions()


def test_an_option_or_a_setting_without_help_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import generated
    from generated_fields import Undocumented

    from orchestrator.config.settings import Settings

    assert "ORCHESTRA_CONCURRENCY" in generated.settings_table()
    monkeypatch.setattr(Settings.model_fields["concurrency"], "description", None)
    with pytest.raises(Undocumented, match="concurrency"):
        generated.settings_table()


@dataclass
class Explained:
    #: two
    #: lines of it
    above: int
    behind: str | None = None  #: why
    _hidden: int = 0


@dataclass
class Unexplained:
    silent: int
