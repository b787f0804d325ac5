"""A tree of sessions on a terminal, folded, chosen from and acted upon by keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal

from rich.text import Text

from orchestrator.cli.control import still_stopping
from orchestrator.cli.render import awaited_answers, is_narrow, short_ids, tree_lines
from orchestrator.display.text import counted, visible
from orchestrator.errors import OrchestraError
from orchestrator.ledger import CLOSED, Session, Tally

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.waiting import Stopping
    from orchestrator.policy.callback import Callback

HELP: Final = (
    "up, down   choose a session (also k, j)",
    "left       fold what is below it (h)",
    "right      unfold it (l); space does either",
    "s          stop it and everything below it, after a question",
    "r          reply to what it asks",
    "q          leave; the session goes on",
    "?          this help",
)
_KEYS: Final = "? help  q leave  s stop  r reply  up/down choose  left/right fold"
#: By how many lines a key moves.
_STEPS: Final = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -10, "page down": 10}
#: Lines of the terminal beside the tree: notes, promise, keys.
_SPARE_ROWS: Final = 5
#: Characters of a reply that is typed here.
_MAX_REPLY: Final = 4000


#: What came of a stop, in words.
_STOPPED: Final = {
    "ended": "it has ended",
    "asked": "its run was asked to stop",
    "over": "it had ended before",
}


class Board:
    """The tree as it is shown."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._sessions: list[Session] = []
        self._notes: Sequence[str] = ()
        self._folded: set[str] = set()
        self._chosen = ""
        self._top = 0
        self._mode: Literal["tree", "help", "stop", "reply"] = "tree"
        self._question: Callback
        self._typed = ""
        self._said = ""
        #: What is still at work below a session that was stopped here, and what came of it.
        self._stopping: Stopping | None = None
        self._stopped = ""
        #: Whether the user wants to leave.
        self.left = False

    def update(self, sessions: list[Session], notes: Sequence[str]) -> None:
        """Take a new picture of the tree."""
        self._sessions, self._notes = sessions, notes
        if sessions and self._chosen not in {session.id for session in sessions}:
            self._chosen = sessions[0].id
            if self._mode == "stop":  # the question was about another session
                self._mode = "tree"
        if self._stopping is not None:
            self._say_who_stops(self._stopping)

    # --- keys --------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        """Carry out what a key means; an error of the stack becomes a line of the picture."""
        try:
            if key == "closed":
                self.left = True
            elif self._mode == "reply":
                self._type(key)
            elif self._mode == "stop":
                self._mode = "tree"
                if key == "y":
                    self._stop()
                else:
                    self._said = "not stopped"
            elif self._mode == "help":
                self._mode = "tree"
            else:
                self._press(key)
        except OrchestraError as error:
            self._mode, self._said = "tree", str(error)

    def _press(self, key: str) -> None:
        self._said, self._stopping = "", None
        if (by := _STEPS.get(key)) is not None:
            self._move(by)
            return
        match key:
            case "q" | "escape":
                self.left = True
            case "?":
                self._mode = "help"
            case "left" | "h":
                self._fold()
            case "right" | "l":
                self._folded.discard(self._chosen)
            case " " | "enter" if self._chosen in self._folded:
                self._folded.discard(self._chosen)
            case " " | "enter":
                self._fold()
            case "s":
                self._ask_to_stop()
            case "r":
                self._ask_for_reply()

    def _move(self, by: int) -> None:
        ids = [session.id for session in self._shown()]
        if ids:
            at = ids.index(self._chosen) if self._chosen in ids else 0
            self._chosen = ids[min(max(at + by, 0), len(ids) - 1)]

    def _fold(self) -> None:
        """Fold what is below the chosen session; of one with nothing below, what it is in."""
        parents = {session.parent for session in self._sessions}
        if self._chosen in parents and self._chosen not in self._folded:
            self._folded.add(self._chosen)
            return
        above = {session.id: session.parent for session in self._sessions}.get(self._chosen, "")
        if above in {session.id for session in self._sessions}:
            self._folded.add(above)
            self._chosen = above

    def _ask_to_stop(self) -> None:
        chosen = next((s for s in self._sessions if s.id == self._chosen), None)
        if chosen is None or chosen.state in CLOSED:
            self._said = "it has ended"
        else:
            self._mode = "stop"

    def _ask_for_reply(self) -> None:
        own = [one for one in self._client.questions(self._chosen) if one.session == self._chosen]
        if own:
            self._question, self._typed, self._mode = own[0], "", "reply"
        else:
            self._said = "it asks nothing"

    def _stop(self) -> None:
        stopping = self._client.stopping(self._chosen)
        self._client.step(stopping)
        outcome = self._client.stop(self._chosen).outcome
        self._stopped, self._stopping = _STOPPED.get(outcome, outcome), stopping
        self._say_who_stops(stopping)

    def _say_who_stops(self, stopping: Stopping) -> None:
        below = self._client.step(stopping)
        if below is not None:
            self._said = f"{self._stopped}{still_stopping(len(below), before='; ')}"

    def _type(self, key: str) -> None:
        match key:
            case "escape":
                self._mode, self._said = "tree", "not replied"
            case "backspace":
                self._typed = self._typed[:-1]
            case "enter" if self._typed.strip():
                self._mode = "tree"
                self._said = f"{self._client.reply(self._question.id, self._typed)} will go on with it"
            case _ if len(key) == 1 and key.isprintable():
                self._typed = (self._typed + key)[:_MAX_REPLY]

    # --- picture -----------------------------------------------------------------------------------

    def _shown(self) -> list[Session]:
        """Return the sessions that are not below a folded one."""
        hidden: set[str] = set()
        shown = []
        for session in self._sessions:
            if session.parent in hidden or session.parent in self._folded:
                hidden.add(session.id)
            else:
                shown.append(session)
        return shown

    def picture(self, width: int, height: int) -> Text:
        """Return as much of the board as fits so many columns and rows."""
        text = Text(no_wrap=True, overflow="ellipsis")
        if self._mode == "help":
            text.append("\n".join((*HELP, "")))
            text.append("any key goes back", style="dim")
            return text
        shown = self._shown()
        ids = short_ids([session.id for session in shown], width)
        below = Counter(session.parent for session in self._sessions)
        lines = tree_lines(shown, narrow=is_narrow(width))
        notes = [*awaited_answers(self._sessions), *self._notes]
        rows = max(3, height - _SPARE_ROWS - len(notes))
        at = next((n for n, line in enumerate(lines) if line.cells[0] == self._chosen), 0)
        self._top = min(max(self._top, at - rows + 1, 0), at)
        for line in lines[self._top : self._top + rows]:
            name = line.cells[0]
            chosen = name == self._chosen
            text.append(">" if chosen else " ", style="bold")
            text.append(line.indent, style="dim")
            label = line.text.removeprefix(name)
            folded = f"  [{counted(below[name], 'child', 'children')} folded]" if name in self._folded else ""
            style = f"{line.style} reverse" if chosen else line.style
            text.append(f"{ids[name]}{visible(label)}{folded}\n", style=style)
        if (more := len(lines) - rows) > 0:
            text.append(f"{counted(more, 'session')} more above or below\n", style="dim")
        for note in notes:
            text.append(f"{visible(note)}\n", style="yellow")
        text.append(f"{Tally.of(self._sessions)}\n")
        text.append_text(self._foot())
        return text

    def _foot(self) -> Text:
        match self._mode:
            case "stop":
                return Text(f"Stop {self._chosen} and everything below it? y/n", style="bold red")
            case "reply":
                question = " ".join(self._question.text.split())
                return Text(
                    f"{visible(question)}\nreply (Enter sends, Esc goes back): {visible(self._typed)}_",
                    style="bold",
                )
        return Text(visible(self._said) if self._said else _KEYS, style="" if self._said else "dim")
