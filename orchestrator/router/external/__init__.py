"""Messages of programs outside of the stack, and work that reaches us by message alone.

What our own agents do is in the ledger before its envelope is in a stream. An external program has only its envelopes,
so here the envelope changes the ledger: it begins a session, reports or ends the session that the program runs, or goes
into the queue of another session. The ids in a message's chain name these sessions.
"""

from orchestrator.router.external.launches import ExternalLaunches
from orchestrator.router.external.messages import ExternalMessages
from orchestrator.router.external.outboxes import Outboxes, make_boxes

__all__ = ["ExternalLaunches", "ExternalMessages", "Outboxes", "make_boxes"]
