"""`make house` fails for what grows above its ceiling, and for a module that signs and stands in no list."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OFFENCE = '''"""What nobody asked for."""
import hmac

from orchestrator import errors


def delegate(a, b, c, d, e, f, g, h):
    return hmac.new(a, b, "sha256")
'''
WALK = """print('{"the child\\'s run": []}')"""


def test_what_grows_is_named_with_its_ceiling_and_lowering_raises_nothing(tmp_path: Path) -> None:
    """Of two rooms, with a walk that enters nothing: `make house` walks through all of them."""
    for folder in (".ci", "orchestrator/client", "orchestrator/keyring"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / ".ci" / "walk.py").write_text(WALK)
    ceilings = tmp_path / ".ci" / "house.toml"
    house = [sys.executable, tmp_path / ".ci" / "house.py", "--lower"]
    assert subprocess.run(house, capture_output=True, check=False, timeout=120).returncode == 0
    before = ceilings.read_text()
    (tmp_path / "orchestrator" / "extra.py").write_text(OFFENCE)

    done = subprocess.run(house, capture_output=True, text=True, check=False, timeout=120)

    assert done.returncode == 1
    assert "orchestrator/extra.py signs or MACs" in done.stderr
    after = ceilings.read_text()
    for name in ("wide", "delegate", "signed"):
        line = next(each for each in before.splitlines() if each.startswith(f"{name} = "))
        assert line in after.splitlines(), "lowering raises no ceiling"
        assert f"above the ceiling of {line.split(' = ')[1]}" in done.stderr
    assert "tests = 0" in after.splitlines()
