"""The stack of `deploy/compose.yaml` without an engine: the image's tree from the Dockerfile's own steps, and its processes.

Each RUN and each service's command, health check and stop is executed as the files say it, in a mount namespace (bubblewrap)
with the paths, volumes, secrets, user and read-only root that they name. All share one network, in which `valkey` is this
host. Runs under `make test-wheel`, as root, since it installs what the image holds and changes owners.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.shouting import AGENTS
from tests.shipped import ROOT, make_secrets
from tests.waiting import wait_until
from tests.wheel import RESOLVED

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.timeout(900),
    pytest.mark.skipif(RESOLVED is None, reason="make test-wheel installs what the image holds"),
    pytest.mark.skipif(os.geteuid() != 0, reason="an engine runs as root, too"),
]

DEPLOY = ROOT / "deploy"
#: What stands in for the file system of `python:…-slim`: this host's programs, and the Python of these tests.
PYTHON = Path(sys.base_prefix)
HOST = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/etc/ssl",
    "/etc/alternatives",
    "/etc/resolv.conf",
    "/etc/nsswitch.conf",
)


class Image:
    """A file system and the defaults of its containers."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {"PATH": f"{PYTHON / 'bin'}:/programs:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
        self.user = self.folder = self.entrypoint = ""
        for place in ("etc", "tmp", "proc", "dev", "run/secrets", "root", "usr", "programs"):
            (root / place).mkdir(parents=True)
        (root / str(PYTHON).lstrip("/")).mkdir(parents=True, exist_ok=True)
        for name in ("passwd", "group", "login.defs"):
            shutil.copy(f"/etc/{name}", root / "etc")
        (root / "etc" / "hosts").write_text("127.0.0.1 localhost valkey\n")
        root.chmod(0o755)

    def inside(self, *more: str, env: dict[str, str] | None = None, folder: str = "") -> list[str]:
        """The command line that runs another one in this file system."""
        mounts = [
            word for path in (*HOST, str(PYTHON)) if Path(path).exists() for word in ("--ro-bind", path, path)
        ]
        if env is None:  # a builder goes out as this host does
            env = self.env | {
                k: v
                for k, v in os.environ.items()
                if re.match(r"PIP_|SSL_|https?_proxy$|no_proxy$", k, re.IGNORECASE)
            }
        variables = [word for name, value in env.items() for word in ("--setenv", name, value)]
        return [
            *("bwrap", "--bind", str(self.root), "/", *mounts, "--proc", "/proc", "--dev", "/dev"),
            *("--perms", "1777", "--tmpfs", "/dev/shm", "--clearenv"),
            *variables,
            *more,
            *("--chdir", folder or self.folder or "/", "--die-with-parent", "--"),
        ]


def context(folder: Path) -> Path:
    """What a builder is sent: the tree without what `.dockerignore` names. The last pattern that fits decides."""
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    for name in filter(None, tracked):
        parts = [name, *(str(p) for p in Path(name).parents)]
        out = False
        for rule in rules:
            pattern, anywhere = rule.lstrip("!").removeprefix("**/"), rule.startswith("**/")
            if any(fnmatchcase(Path(part).name if anywhere else part, pattern) for part in parts[:-1]):
                out = not rule.startswith("!")
        if not out and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def build(folder: Path) -> Image:
    """Carry out the Dockerfile, step by step."""
    sent = context(folder / "context")
    text = re.sub(r"\\\n", " ", (DEPLOY / "Dockerfile").read_text())
    stages: dict[str, Image] = {}
    image = Image(folder / "none")
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        match word:
            case "FROM":
                name = rest.partition(" AS ")[2] or "last"
                image = stages[name] = Image(folder / name)
            case "WORKDIR":
                (image.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
                image.folder = rest
            case "ENV":
                for name, value in re.findall(r"(\w+)=(\S+)", rest):
                    image.env[name] = value.replace("$PATH", image.env["PATH"])
            case "USER":
                image.user = rest
            case "ENTRYPOINT":
                image.entrypoint = rest
            case "COPY":
                copy(rest.split(), sent, image, stages)
            case "RUN":
                done = subprocess.run(
                    [*image.inside(), "/bin/sh", "-c", rest], capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
            case "" | "#" | "ARG" | "CMD":
                pass
            case _:
                raise AssertionError(f"the test does not know {word}")
    return image


def copy(words: list[str], sent: Path, image: Image, stages: dict[str, Image]) -> None:
    *sources, place = words
    if sources[0].startswith("--from="):
        sent = stages[sources.pop(0).removeprefix("--from=")].root
    target = image.root / (place if place[0] == "/" else f"{image.folder}/{place}").lstrip("/")
    for name in sources:
        source = sent / name.lstrip("/")
        assert source.exists(), f"{name} is not sent to the builder"
        to = target / source.name if place.endswith("/") else target
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--no-target-directory", source, to], check=True)


class Compose:
    """The services of the compose file as processes; volumes are folders."""

    def __init__(self, image: Image, folder: Path, variables: dict[str, str]) -> None:
        self.image, self.folder = image, folder
        text = re.sub(
            r"\$\{(\w+)(?::[-?]([^}]*))?\}",
            lambda m: variables.get(m[1], m[2] or ""),
            (DEPLOY / "compose.yaml").read_text(),
        )
        self.services: dict[str, Any] = yaml.safe_load(text.replace("$$", "$"))["services"]
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        # One network for all, which is nobody else's.
        self._net = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up; echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
        )
        assert self._net.stdout is not None
        self._net.stdout.readline()

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        """The command line of a process in the container of a service."""
        service = self.services[name]
        mounts: list[str] = []
        for place in service.get("tmpfs", ["/tmp"]):
            path, _, options = place.partition(":")
            mode = dict(o.split("=") for o in options.split(",") if o).get("mode", "1777")
            mounts += ["--perms", mode, "--tmpfs", path]
            if "uid=10001" in options:
                mounts[-4:] = ["--bind", str(self.owned(f"tmpfs-{name}{path}", "10001")), path]
        for volume in sorted(service.get("volumes", []), key=lambda one: one.split(":")[1].count("/")):
            source, place, *mode = volume.split(":")
            host = DEPLOY / source if source.startswith("./") else self.volume(source, place, name)
            if source == "./agents":
                host = self.folder / "agents"
            mounts += ["--ro-bind" if mode == ["ro"] else "--bind", str(host), place]
        for secret in service.get("secrets", []):
            given = {"source": secret, "target": secret} if isinstance(secret, str) else secret
            mounts += [
                "--ro-bind",
                str(self.folder / "secrets" / given["source"]),
                f"/run/secrets/{given['target']}",
            ]
        if name == "valkey":
            for program in ("server", "cli"):
                mounts += ["--ro-bind", shutil.which(f"redis-{program}") or "", f"/programs/valkey-{program}"]
        network = ["nsenter", f"--net=/proc/{self._net.pid}/ns/net", "--"]
        readonly = ["--remount-ro", "/"] if service.get("read_only") else []
        host_name = ["--unshare-uts", "--hostname", name]
        return [
            *network,
            *self.image.inside(*mounts, *readonly, *host_name, env=self.environment(name)),
            *self.become(name),
            *words,
        ]

    def owned(self, name: str, user: str) -> Path:
        place = self.folder / "volumes" / name.replace("/", "_")
        if not place.exists():
            place.mkdir(parents=True)
            os.chown(place, int(user), int(user))
        return place

    def volume(self, source: str, place: str, service: str) -> Path:
        """A volume, which takes the owner of what the image has in its place when it is made."""
        in_image = self.image.root / place.lstrip("/")
        owner = "10002" if service == "valkey" else str(in_image.stat().st_uid if in_image.exists() else 0)
        return self.owned(source, owner)

    def main(self, name: str) -> list[str]:
        """The command of a service."""
        service = self.services[name]
        first = service.get("entrypoint", [] if name == "valkey" else yaml.safe_load(self.image.entrypoint))
        return [*first, *service.get("command", [])]

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`docker compose run --rm NAME ARGUMENTS`."""
        words = self.main(name) if not arguments else [*yaml.safe_load(self.image.entrypoint), *arguments]
        return subprocess.run(
            self.command(name, words), capture_output=True, text=True, check=False, timeout=300
        )

    def up(self, name: str) -> None:
        """Start a service."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(self.command(name, self.main(name)), stdout=log, stderr=log)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def process(self, name: str) -> int:
        """The process in the container; its parent sets the container up and hands its exit code on."""
        outer = self.running[name]
        assert outer.poll() is None, self.log(name)
        inner = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        return int(inner[0]) if inner else 0  # it is being set up

    def healthy(self, name: str) -> bool:
        """What its check says, executed in the container."""
        if not self.process(name):
            return False
        kind, *words = self.services[name]["healthcheck"]["test"]
        inside = ["nsenter", f"--target={self.process(name)}", "--mount", "--net", "--uts", "--root", "--wd"]
        variables = [f"{key}={value}" for key, value in self.environment(name).items()]
        check = [
            *inside,
            "env",
            "-i",
            *variables,
            *self.become(name),
            *(["/bin/sh", "-c"] if kind == "CMD-SHELL" else []),
        ]
        return subprocess.run([*check, *words], capture_output=True, check=False).returncode == 0

    def down(self, name: str) -> int:
        """Stop a service; its exit code."""
        os.kill(self.process(name), signal.SIGTERM)
        grace = str(self.services[name].get("stop_grace_period", "10s")).rstrip("s")
        return self.running.pop(name).wait(float(grace))

    def environment(self, name: str) -> dict[str, str]:
        return self.image.env | {k: str(v) for k, v in self.services[name].get("environment", {}).items()}

    @staticmethod
    def become(name: str) -> list[str]:
        """The user of the container, without any capability."""
        user = "10002" if name == "valkey" else "10001"
        return [
            "setpriv",
            "--reuid",
            user,
            "--regid",
            user,
            "--clear-groups",
            "--no-new-privs",
            "--bounding-set=-all",
        ]

    def close(self) -> None:
        for process in (*self.running.values(), self._net):
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def compose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compose]:
    for program in ("bwrap", "setpriv", "nsenter", "redis-server", "openssl"):
        if shutil.which(program) is None:
            pytest.skip(f"the program {program} is not installed")
    folder = tmp_path_factory.mktemp("image")
    image = build(folder / "build")
    made = Compose(image, folder, {"ORCHESTRA_AGENTS": "my_agents.py", "FLOWER_BASIC_AUTH": "me:word"})
    make_secrets(folder / "secrets", "--tls")
    (folder / "agents").mkdir()
    (folder / "agents" / "my_agents.py").write_text(AGENTS)
    try:
        yield made
    finally:
        made.close()


def test_the_stack_of_the_compose_file_runs_and_outlives_its_server(compose: Compose) -> None:
    compose.up("valkey")
    wait_until(lambda: compose.healthy("valkey"), "the server", 60)
    for _ in range(2):  # it may be run again
        keys = compose.run("keys")
        assert keys.returncode == 0, keys.stdout + keys.stderr
    parts = ["router", "callbacks", "reaper", "audit", "worker", "flower"]
    for name in parts:
        compose.up(name)
    for name in parts:
        wait_until(lambda name=name: compose.healthy(name), name, 120)
    wait_until(lambda: "shouter" in compose.run("operator", "agents").stdout, "the agents", 60)

    done = compose.run("operator", "submit", "lead", "be quiet now", "--wait")
    assert done.stdout == "BE NOW QUIET\n", done.stderr

    # With work in it: what was acknowledged is there after the server was killed.
    before = compose.run("operator", "submit", "lead", "a b c d e f")
    os.kill(compose.process("valkey"), signal.SIGKILL)
    compose.running.pop("valkey").wait()
    compose.up("valkey")
    wait_until(lambda: compose.healthy("valkey"), "the server", 60)
    session = re.search(r"ses_\w+", before.stdout)
    assert session, before.stderr
    again = compose.run("operator", "result", session[0], "--wait")
    assert again.stdout == "A B C D E F\n", again.stderr
    proof = compose.run("operator", "doctor")
    assert (proof.returncode, "all accounted for" in proof.stdout) == (0, True), proof.stdout + proof.stderr
    assert "9 launched = 9 delivered" in proof.stdout

    for name in parts:
        said = [
            line
            for line in compose.log(name).splitlines()
            if re.search(r"ermission|Read-only|not-attested|Traceback", line)
        ]
        assert not said, f"{name}: {said[0]}"
    assert [name for name in parts if not compose.healthy(name)] == []
    assert {name: compose.down(name) for name in ["worker", *parts[:4], "flower"]} == dict.fromkeys(parts, 0)
    assert compose.down("valkey") == 0


def test_the_builder_is_sent_what_the_image_is_made_of_and_nothing_else(tmp_path: Path) -> None:
    sent = context(tmp_path)
    assert {path.name for path in sent.iterdir()} == {
        *("LICENSE", "README.md", "orchestrator", "pyproject.toml", "requirements", "schemas")
    }
