"""The rules of the house that a machine can hold: arrows, names, keys, scripts, and what the tree may not hold."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
from pathlib import Path

import pytest

import orchestrator
import workers
from orchestrator.redisdb.all_keys import REGISTRY
from orchestrator.redisdb.key_table import PREFIX

PACKAGES = (orchestrator, workers)
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "orchestrator" / "redisdb" / "scripts").rglob("*.lua"))


def source_files() -> list[Path]:
    return sorted(p for package in ("orchestrator", "workers") for p in (ROOT / package).rglob("*.py"))


def module_names() -> list[str]:
    return sorted(
        module.name
        for package in PACKAGES
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        # Importing one makes the app of a running stack, which its own tests do; the third is Alembic's to execute.
        if module.name not in {"orchestrator.celery", "workers.celery", "orchestrator.audit.migrations.env"}
        and not module.name.endswith("__main__")
    )


@pytest.mark.parametrize("name", module_names())
def test_what_a_module_exports_is_there(name: str) -> None:
    """`__all__` names only what can be imported, and each once; ruff keeps it in order."""
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is not None:
        assert len(exported) == len(set(exported))
        for attribute in exported:
            assert hasattr(module, attribute), attribute


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_first_what_it_is_for(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if text.strip():
        docstring = ast.get_docstring(ast.parse(text))
        assert docstring, "no docstring"
        assert (
            docstring.splitlines()[0].rstrip().endswith((".", ":", ",", ";"))
            or len(docstring.splitlines()) > 1
        )


def test_few_modules_stand_at_the_root() -> None:
    """What has a noun has a room; only what every room needs stands beside them."""
    assert len(list((ROOT / "orchestrator").glob("*.py"))) <= 10


def test_only_the_registry_spells_a_key() -> None:
    """The prefix of the keys stands in one module; everybody else calls a function of it."""
    spelt = re.compile(rf"""["'`]{PREFIX}:""")
    found = [
        str(path.relative_to(ROOT))
        for path in [*source_files(), *SCRIPTS]
        if path.name != "key_table.py" and spelt.search(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_every_key_has_an_owner_a_lifetime_and_a_meaning() -> None:
    assert REGISTRY
    for spec in REGISTRY:
        assert all((spec.name, spec.pattern, spec.owner, spec.lifetime, spec.holds)), spec
        # What was set aside is of the type that another program gave it.
        types = {"any"} if spec.name == "aside" else {"hash", "zset", "set", "stream", "string", "list"}
        assert spec.type in types, spec
        assert spec.pattern.startswith(f"{PREFIX}:"), spec
    assert len({spec.pattern for spec in REGISTRY}) == len(REGISTRY)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_says_what_it_takes_and_what_it_returns(path: Path) -> None:
    head = path.read_text(encoding="utf-8")
    assert head.startswith("--"), "no header"
    if "lib" not in path.parts:
        comment = "\n".join(line for line in head.splitlines() if line.startswith("--"))
        for word in ("KEYS", "ARGV"):
            assert word in comment, word
        assert re.search(r"return|result", comment, re.IGNORECASE)


def test_scripts_are_files_and_not_strings_in_python() -> None:
    found = [
        str(path.relative_to(ROOT))
        for path in source_files()
        if re.search(r"redis\.p?call\(", path.read_text(encoding="utf-8"))
    ]
    assert found == []


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_the_tree_names_no_package_index_and_no_place_of_one_machine() -> None:
    """Anyone's index and anyone's folders must do."""
    hosts = ["py" + "pi.org", "python" + "hosted.org", "registry." + "npmjs", "deb." + "debian.org"]
    places = ["/" + "root/", "/" + "work/", "/home/" + "runner"]
    forbidden = re.compile("|".join(map(re.escape, [*hosts, *places])))
    found = []
    for path in tracked_files():
        text = path.read_text(encoding="utf-8", errors="ignore")
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in forbidden.finditer(text)]
    assert found == []


def test_nothing_is_left_to_do_later() -> None:
    mark = re.compile(r"\b(" + "TO" + "DO|FIX" + r"ME)\b|XX" + "X:")
    found = [str(p.relative_to(ROOT)) for p in source_files() if mark.search(p.read_text(encoding="utf-8"))]
    # The reviewer looks for such marks in other people's code and has to name them.
    assert [name for name in found if not name.startswith("orchestrator/demo/")] == []


def test_locked_requirements_are_hashed_and_name_no_index() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        text = path.read_text()
        pinned = re.findall(r"^\S+==\S+", text, re.MULTILINE)
        assert len(pinned) > 20, path.name
        assert "--index-url" not in text
        for entry in re.split(r"\n(?=\S)", text.strip()):
            assert "--hash=sha256:" in entry, entry.splitlines()[0]


def test_each_decision_has_a_number_of_its_own() -> None:
    """The one that its file and its title have."""
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    numbers = [int(page.name.partition("-")[0]) for page in pages]
    assert len(set(numbers)) == len(numbers)
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in pages]
    assert [title.partition(".")[0] for title in titles] == [f"# {number}" for number in numbers]


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_nobody_outside_the_ledger_uses_its_redis(path: Path) -> None:
    """Neither its connection nor its scripts: others call its methods. A contract says the same of its keys."""
    if str(path.relative_to(ROOT)).startswith("orchestrator/ledger/"):
        return
    borrowed = [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in {"redis", "scripts"}
        and ast.unparse(node.value).split(".")[-1] in {"ledger", "_ledger"}
    ]
    assert borrowed == []
