"""How far plays get: what takes part in them, what befalls their processes, and what each script answers."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections import Counter
from typing import Any

from orchestrator.redisdb import scripts
from orchestrator.testing.simulation.schedule import Schedule
from orchestrator.testing.simulation.server import Server
from tests.simulation.stacks import Scene
from tests.simulation.trees import Task

#: What a script says first of what it did; whatever else it answers is a number, an id, a `d` for each thing, or nothing.
_SAID = re.compile(rb"(?!d+$)[a-z]+( [a-z]+)?")


class Reached:
    """In how many plays something happened."""

    def __init__(self, *servers: Server) -> None:
        texts = {name: scripts.source(name).encode() for name in scripts.names()}
        self._names = {
            hashlib.sha1(text, usedforsecurity=False).hexdigest().encode(): name
            for name, text in texts.items()
        }
        self._now: set[str] = set()
        for server in servers:
            server.on_answer = self._note

    def _note(self, sha: bytes, answer: Any) -> None:
        name = self._names.get(sha)
        if name is None:
            return
        said = answer if isinstance(answer, list) else [answer]
        if said and isinstance(said[0], list):  # of each of several things
            said = [one[0] for one in said if isinstance(one, list) and one]
        else:
            said = said[:1]
        words = (word.decode() for word in said if isinstance(word, bytes) and _SAID.fullmatch(word))
        self._now |= {f"script {name}", *(f"script {name}: {word}" for word in words)}

    def play(self, scene: Scene | None = None, schedule: Schedule | None = None) -> set[str]:
        """Return what the play that has ended has reached, and begin anew."""
        found, self._now = self._now, set()
        found |= {f"event {event}" for event in (schedule or {}).values() if not event.startswith("then ")}
        if scene is not None:
            found |= {f"scene {what}" for what in _differs(scene, Scene(scene.task))}
            found |= {f"task {what}" for what in _of_tree(scene.task)}
        return found


def _differs(one: Any, usual: Any) -> set[str]:
    """What is otherwise than usual, by name; where there are several ways of it, with the way."""
    fields = ((f.name, getattr(one, f.name)) for f in dataclasses.fields(usual))
    return {
        f"{name} {value}" if isinstance(value, str) else name
        for name, value in fields
        if value != getattr(usual, name)
    }


def _of_tree(task: Task) -> set[str]:
    own = _differs(task, Task(task.name, task.children))
    return own.union({f"wait {task.wait}"} if task.children else (), *map(_of_tree, task.children))


def table(reached: Counter[str], plays: int) -> str:
    """Return in how many of so many plays each thing was reached, a line each."""
    return "\n".join(
        [f"reached in how many of {plays} plays:", *(f"{reached[k]:7} {k}" for k in sorted(reached))]
    )
