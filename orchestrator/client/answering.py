"""The final answers of sessions: read, checked, waited for."""

from __future__ import annotations

from orchestrator.client.waiting import Waiting
from orchestrator.errors import DecryptionError, NotGenuine, SessionFailed
from orchestrator.ledger.large_text import Decrypted
from orchestrator.ledger.model import SessionState
from orchestrator.ledger.reader import LedgerReader
from orchestrator.messages.authenticity import Authenticity


class Answering:
    """Waits for the answer of a session, in steps."""

    def __init__(
        self, ledger: LedgerReader, authenticity: Authenticity, waiting: Waiting, session: str
    ) -> None:
        self._ledger = ledger
        self._authenticity = authenticity
        self._waiting = waiting
        self._session = session
        self._over = False

    def step(self) -> str | None:
        """Return the answer once the session has ended, else None after a quarter of a second at most.

        Raises:
            SessionFailed, SessionStopped, SessionDeleted: it ended without an answer.
            NotGenuine: somebody has changed it in the ledger.
            TimeoutError, ServerUnavailable, UnknownSession: as :meth:`Waiting.step`.
        """
        self._over = self._over or self._waiting.step() is not None
        if not self._over:
            return None
        # Nothing where Redis is away, or where the session was resumed since it was seen to have ended.
        found = self._waiting.try_to(lambda: (read_answer(self._ledger, self._authenticity, self._session),))
        self._over = found is None
        return found[0] if found is not None else None


def read_answer(ledger: LedgerReader, authenticity: Authenticity, session: str) -> str | None:
    """Return the final answer of a session that has ended; None if it has none yet.

    With the key of `operator` in the data folder, it is made sure that the session's own agent has given it.

    Raises:
        SessionFailed, SessionStopped, SessionDeleted: it ended without an answer.
        NotGenuine: somebody has changed it in the ledger.
        DecryptionError: it is encrypted, and no key in the data folder opens it.
        UnknownSession: there is no such session.
    """
    answer = ledger.final_answer(session)
    if isinstance(answer, SessionFailed):
        raise answer
    if isinstance(answer, Decrypted) and answer.failed:
        raise DecryptionError(
            f"the answer of session {session} is encrypted, and no key in this data folder opens it; on the operator's host "
            "`orchestra keys export operator` brings the key along"
        )
    if answer is None or not authenticity.reads_as_operator:
        return answer
    about, text, whole, attached, body = ledger.answer_as_kept(session)
    if about.state is not SessionState.FINISHED:
        return read_answer(ledger, authenticity, session)  # it was resumed or deleted meanwhile
    if fault := authenticity.judge_answer(about, text, whole, attached, body)[1]:
        raise NotGenuine(session, about.agent, fault)
    return ledger.large_texts.read(whole) if whole else text
