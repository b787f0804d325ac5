"""A real PostgreSQL server over a unix socket, and either kind of audit database for tests that run on both."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, delete, insert, select

from orchestrator.audit.database import METADATA

#: Where Debian keeps the programs of each version, newest last.
_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))


def program(name: str) -> str:
    """A program of PostgreSQL; without it the test is skipped, or fails where CI promised it."""
    places = [str(folder) for folder in reversed(_FOLDERS)]
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        reason = f"the program {name} of PostgreSQL is not installed"
        if os.environ.get("TESTS_REQUIRE_PROGRAMS"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


class PostgresServer:
    """One server, which keeps what it has in a folder of its own and may be stopped and started again."""

    def __init__(self) -> None:
        self._postgres, initdb = program("postgres"), program("initdb")
        # In memory where pytest's folder is, but not below that, which nobody else may enter: no server runs as root.
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._user = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(self.folder, "postgres", "postgres")
        self._data = self.folder / "data"
        options = ["-D", str(self._data), "-U", "orchestra", "-A", "trust", "-E", "UTF8", "--no-locale", "-N"]
        done = subprocess.run(
            [initdb, *options], capture_output=True, check=False, cwd=self.folder, **self._user
        )
        assert done.returncode == 0, done.stderr.decode()
        self._process: subprocess.Popen[bytes] | None = None
        self._made = 0

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = (
            "listen_addresses=",
            f"unix_socket_directories={self.folder}",
            "fsync=off",
            "max_wal_size=2GB",
        )
        options = [part for setting in settings for part in ("-c", setting)]
        self._process = subprocess.Popen(
            [self._postgres, "-D", str(self._data), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=self.folder,
            **self._user,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, "the server ended"
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def stop(self) -> None:
        """Stop the server at once, as a machine does that loses its power."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(30)
            self._process = None

    def remove(self) -> None:
        """Stop the server and remove what it kept."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str) -> str:
        """The URL of a database."""
        return f"postgresql://orchestra@/{database}?host={self.folder}"

    def make(self) -> str:
        """Make an empty database and return its URL."""
        self._made += 1
        name = f"trail_{self._made}"
        with closing(psycopg.connect(self.url("postgres"), autocommit=True)) as db:
            db.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
        return self.url(name)

    def drop(self, url: str) -> None:
        """Remove a database, whoever still reads it."""
        name = url.partition("@/")[2].partition("?")[0]
        with closing(psycopg.connect(self.url("postgres"), autocommit=True)) as db:
            db.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]


def on_sqlite(name: str, cases: Iterable[Any], *, on_both: Iterable[Any] = ()) -> pytest.MarkDecorator:
    """Give a test these cases on SQLite, and some of them on PostgreSQL, too; what judges them is the same code."""
    pairs = [("sqlite", case) for case in cases] + [("postgresql", case) for case in on_both]
    return pytest.mark.parametrize(("trail_database", name), pairs, indirect=["trail_database"])


@dataclass(frozen=True)
class TrailDatabase:
    """An audit database, and the way to it of somebody who may write to it."""

    where: Path | str

    @contextmanager
    def tamper(self) -> Iterator[Tampering]:
        """Statements past the audit store; committed at the end."""
        if isinstance(self.where, Path):
            with closing(sqlite3.connect(self.where)) as db, db:
                yield Tampering(db)
        else:
            with psycopg.connect(self.where) as server:
                yield Tampering(server)

    def copy(self) -> dict[str, list[dict[str, Any]]]:
        """Every row of every table."""
        with closing_engine(self.where) as engine, engine.connect() as db:
            return {
                table.name: [dict(row._mapping) for row in db.execute(select(table))]
                for table in METADATA.sorted_tables
            }

    def put_back(self, rows: dict[str, list[dict[str, Any]]]) -> None:
        """Make the database what it was at the time of a copy."""
        with closing_engine(self.where) as engine, engine.begin() as db:
            for table in METADATA.sorted_tables:
                db.execute(delete(table))
                if rows[table.name]:
                    db.execute(insert(table), rows[table.name])


@contextmanager
def closing_engine(where: Path | str) -> Iterator[Any]:
    """An engine on an audit database of either kind."""
    url = f"sqlite:///{where}" if isinstance(where, Path) else where.replace(":", "+psycopg:", 1)
    engine = create_engine(url)
    try:
        yield engine
    finally:
        engine.dispose()


class Tampering:
    """A connection that takes the same statements on both, with ``?`` for a value."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._marker = "?" if isinstance(db, sqlite3.Connection) else "%s"

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Carry out one statement."""
        return self._db.execute(statement.replace("?", self._marker), tuple(values))
