"""The one place where settings become objects: what services, workers and clients share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import redis
from pydantic import ValidationError

from orchestrator.log import get_logger

if TYPE_CHECKING:
    from celery import Celery

    from orchestrator.agents.registry import AgentRegistry
    from orchestrator.config.settings import Settings
    from orchestrator.dispatch import Dispatcher, RootResults
    from orchestrator.envelope.sealing import Encrypter, Opener
    from orchestrator.keyring.codes import Codes, SealedTexts
    from orchestrator.keyring.registry import Keyring
    from orchestrator.ledger import Concurrency, Ledger, LedgerReader, Outgoing, RunRef, Session, TreeLimits
    from orchestrator.ledger.decode import Statement
    from orchestrator.messages.authenticity import Authenticity
    from orchestrator.messages.factory import MessageFactory
    from orchestrator.messages.recipients import EncryptionKeys
    from orchestrator.policy.routing import RoutingTable
    from orchestrator.reconciler.delivery import Delivery
    from orchestrator.streams.pressure import Backpressure

_log = get_logger()


class Container:
    """Parts that work on one Redis under one set of settings. Safe to share between threads.

    Each part is made when it is first asked for, and connects to nothing until it is used.
    """

    def __init__(self, client: redis.Redis, settings: Settings) -> None:
        self.redis = client
        self.settings = settings

    @cached_property
    def ledger(self) -> Ledger:
        """Sessions, runs and callbacks."""
        from orchestrator.ledger import Ledger

        return Ledger(
            self.redis,
            limits=ledger_limits(self.settings),
            report=self.end_reports,
            attest=self._attest,
            encryption=_EncryptionOf(self),
        )

    @cached_property
    def reader(self) -> LedgerReader:
        """The ledger for who only looks: it loads no transition, and no keys where nothing is sealed."""
        from orchestrator.ledger.reader import LedgerReader

        return LedgerReader(self.redis, _EncryptionOf(self))

    def _attest(self, statement: Statement, *, by: str, to: str) -> str:
        return self.authenticity.attest(statement, by=by, to=to)

    @cached_property
    def encryption(self) -> SealedTexts:
        """Seals the texts of encrypted sessions, and opens those that the keys of the data folder open."""
        from orchestrator.agents.registry import OPERATOR
        from orchestrator.keyring.codes import SealedTexts

        return SealedTexts(self.keyring, self.codes, recipient=self.recipients.recipient, always=(OPERATOR,))

    @cached_property
    def recipients(self) -> EncryptionKeys:
        """The keys that messages are encrypted to."""
        from orchestrator.messages.recipients import EncryptionKeys

        return EncryptionKeys(self.keyring, self.agents)

    @cached_property
    def codes(self) -> Codes:
        """Proofs and secrets that the keys of the data folder share with those of others."""
        from orchestrator.keyring.codes import Codes

        return Codes(self.keyring)

    @cached_property
    def authenticity(self) -> Authenticity:
        """Attests what is written into the ledger, and verifies what others wrote."""
        from orchestrator.messages.authenticity import Authenticity

        return Authenticity(self.keyring, required=self.settings.signatures_required, codes=self.codes)

    @cached_property
    def concurrency(self) -> Concurrency:
        """Limits on runs at work at once, and pauses."""
        from orchestrator.ledger import Concurrency

        return Concurrency(self.redis, shards=self.settings.shards)

    @cached_property
    def agents(self) -> AgentRegistry:
        """The registered agents."""
        from orchestrator.agents.registry import AgentRecords, AgentRegistry

        return AgentRegistry(
            self.redis,
            AgentRecords(self.keyring.registry),
            ttl_s=self.settings.registration_ttl_s,
        )

    @cached_property
    def keyring(self) -> Keyring:
        """The keys of the data folder, and the public ones of everybody."""
        from orchestrator.keyring.registry import KeyRegistry, Keyring
        from orchestrator.keyring.store import KeyStore

        store = KeyStore(self.settings.keys_dir, self.settings.signature_algorithm)
        return Keyring(store, KeyRegistry(self.redis, store))

    @cached_property
    def encrypter(self) -> Encrypter:
        """Compresses, encrypts or stores apart the bodies of outgoing messages."""
        from orchestrator.envelope.payload import BlobStore
        from orchestrator.envelope.sealing import Encrypter

        settings = self.settings
        return Encrypter(
            BlobStore(self.redis),
            blob_ttl_s=settings.blob_ttl_s,
            max_bytes=settings.max_payload_bytes,
        )

    @cached_property
    def opener(self) -> Opener:
        """Opens the bodies of incoming messages, with the keys of the data folder."""
        from orchestrator.envelope.payload import BlobStore
        from orchestrator.envelope.sealing import Opener

        settings = self.settings
        return Opener(
            BlobStore(self.redis, max_bytes=settings.max_payload_bytes),
            find_key=self.keyring.decryption_key,
            max_bytes=settings.max_payload_bytes,
        )

    @cached_property
    def message_factory(self) -> MessageFactory:
        """Writes and signs our own envelopes."""
        from orchestrator.messages.factory import MessageFactory

        return MessageFactory(
            self.keyring,
            self.agents,
            routing=self.routing,
            encrypter=self.encrypter,
            recipients=self.recipients,
            encrypt_all=self.settings.encrypt == "all",
        )

    @cached_property
    def pressure(self) -> Backpressure:
        """Asks for room in the streams before new work is published."""
        from orchestrator.streams.pressure import Backpressure

        return Backpressure(self.redis, limit=self.settings.stream_max_entries)

    @cached_property
    def routing(self) -> RoutingTable:
        """The routing table with the user's overrides.

        Raises:
            ConfigurationError: a row in the TOML file is wrong.
        """
        from orchestrator.agents.loader import load_routing

        return load_routing()

    @cached_property
    def celery(self) -> Celery:
        """The Celery app, for sending and for results."""
        from orchestrator.dispatch import build_celery

        return build_celery(self.settings, redis_url=self.settings.redis_url)

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """Sends runs to workers."""
        from orchestrator.dispatch import Dispatcher

        return Dispatcher(self.celery)

    @cached_property
    def results(self) -> RootResults:
        """The Celery results of roots."""
        from orchestrator.dispatch import RootResults

        return RootResults(self.celery, self.redis)

    @cached_property
    def delivery(self) -> Delivery:
        """Turns the ledger's state into dispatched runs."""
        from orchestrator.reconciler.delivery import Delivery

        return Delivery(self.ledger, self._send, write_reply=self._system_reply)

    def _system_reply(self, about: Session, question: str, text: str) -> Outgoing:
        """The reaper's answer to a question of a session that nobody answered in time."""
        from orchestrator.agents.registry import REAPER
        from orchestrator.messages.factory import to_session

        return self.message_factory.reply(question=question, answer=text, **to_session(about, sender=REAPER))

    def _send(self, runs: Sequence[RunRef]) -> None:
        """Notify the workers of our own agents, and hand the runs of external programs over to them."""
        from orchestrator.reconciler.delivery import hand_over

        ready = hand_over(runs, ledger=self.ledger, agents=self.agents)
        self.dispatcher.wake((run.agent, queue) for run, queue in ready if run.wake)

    def wake(self, agents: Iterable[str]) -> None:
        """Tell the workers of these agents that they have ready runs.

        Those of agents that nobody registered wait.

        Raises:
            ServerUnavailable: the broker does not answer; the sweep wakes them later.
        """
        queues = [(agent, self.queue_of(agent)) for agent in agents]
        self.dispatcher.wake((agent, queue) for agent, queue in queues if queue is not None)

    def queue_of(self, agent: str) -> str | None:
        """Return the Celery queue of an agent's runs; None if the agent is not registered."""
        record = self.agents.get(agent)
        return None if record is None else record.queue

    def settle(self, root: str) -> None:
        """Store the result for which the caller of a root waits; harmless to repeat."""
        from orchestrator.dispatch.results import publish_result

        publish_result(self.ledger, self.results, root)

    def end_reports(self, about: Session, reason: str, by: str = "") -> list[Outgoing]:
        """The reports of a session that ``by`` ends: to the agent that gave it its task, and to the external one that runs it.

        An agent of our own hears of its end by its heartbeat; an external program has only this report.

        Raises:
            KeyringError: there is no key of ``by`` to sign them with.
        """
        from orchestrator.agents.registry import OPERATOR, REAPER
        from orchestrator.messages.factory import from_session

        by = by or REAPER
        parent = self.ledger.find([about.parent]) if about.parent else []
        delegator = parent[0].agent if parent else about.delegator or OPERATOR
        agent = self.agents.get(about.agent)
        recipients = dict.fromkeys([delegator] if delegator != by else [])
        if not recipients or (agent is not None and agent.external):
            recipients[about.agent] = None
        reports = []
        for recipient in recipients:
            parties = from_session(about, recipient, by=by)
            if recipient != delegator:
                parties["recipient_session"] = about.id
            try:
                reports.append(
                    self.message_factory.error(
                        error=reason,
                        details=json.dumps({"session": about.id, "task": about.reported_as}),
                        **parties,
                    )
                )
            except ValidationError as error:
                # A session whose records are damaged ends all the same.
                _log.error("end-not-reported", session=about.id, to=recipient, error=str(error))
        return reports


class _EncryptionOf:
    """The encryption of a container, whose keys are loaded when a text is sealed or opened."""

    def __init__(self, parts: Container) -> None:
        self._parts = parts

    def seal(self, text: str, *, label: str, by: str, to: tuple[str, ...]) -> str:
        return self._parts.encryption.seal(text, label=label, by=by, to=to)

    def open(self, sender: str, readers: str, label: str, content: str) -> str | None:
        return self._parts.encryption.open(sender, readers, label, content)


#: Sweeps after which a queued run that nobody took is looked at: ten seconds by default.
_SWEEPS: Final = 5


def build_container(client: redis.Redis, settings: Settings) -> Container:
    """The parts of a stack; connects to nothing."""
    return Container(client, settings)


def ledger_limits(settings: Settings) -> TreeLimits:
    """Return the bounds that the ledger's transitions keep, with what the settings say."""
    from orchestrator.ledger import TreeLimits

    return TreeLimits(
        conversation_messages=settings.conversation_max_messages,
        resume_max_items=settings.resume_max_items,
        resume_max_bytes=settings.resume_max_bytes,
        max_lost_workers=settings.max_lost_workers,
        max_process_deaths=settings.max_process_deaths,
        redispatch_ms=round(settings.sweep_interval_s * _SWEEPS * 1000),
        question_ms=round((settings.question_time_limit_s or 0) * 1000),
        tree_ttl_ms=round(settings.tree_ttl_s * 1000),
        replicas=settings.replicas,
    )
