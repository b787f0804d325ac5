"""What the bundled agents may read: plain Python files below the folders that were named, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.demo.sources import MAX_SOURCE_BYTES, SourceTrees, find_modules
from orchestrator.errors import InputError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree beside a file that is nobody's business."""
    (tmp_path / "secret.py").write_text("# TODO: hunter2\n")
    inside = tmp_path / "tree"
    (inside / "deeper").mkdir(parents=True)
    (inside / "deeper" / "fine.py").write_text("x = 1\n")
    (tmp_path / "treetop").mkdir()
    (tmp_path / "treetop" / "near.py").write_text("x = 2\n")
    return inside


def test_what_is_below_a_root_is_read(tree: Path) -> None:
    trees = SourceTrees([tree])
    assert trees.read(tree / "deeper" / "fine.py") == "x = 1\n"
    assert trees.read(tree / "deeper" / ".." / "deeper" / "fine.py") == "x = 1\n"
    assert SourceTrees([tree / "deeper" / "fine.py"]).read(tree / "deeper" / "fine.py") == "x = 1\n"


def test_a_root_may_be_named_by_a_link(tree: Path) -> None:
    link = tree.parent / "link"
    link.symlink_to(tree)
    assert SourceTrees([link]).read(link / "deeper" / "fine.py") == "x = 1\n"


@pytest.mark.parametrize(
    "path",
    ["secret.py", "tree/../secret.py", "treetop/near.py", "nowhere.py", "tree/../nowhere.py", "/etc/passwd"],
)
def test_what_is_outside_is_refused_in_the_same_words_whether_it_is_there_or_not(
    tree: Path, path: str
) -> None:
    with pytest.raises(InputError, match="is not below a folder whose sources may be reviewed"):
        SourceTrees([tree]).read(tree.parent / path)


def test_without_a_root_nothing_is_read(tree: Path) -> None:
    with pytest.raises(InputError, match="is not below a folder"):
        SourceTrees([]).read(tree / "deeper" / "fine.py")


def test_no_link_leads_out(tree: Path) -> None:
    (tree / "file.py").symlink_to(tree.parent / "secret.py")
    (tree / "folder").symlink_to(tree.parent / "treetop")
    (tree / "inner.py").symlink_to(tree / "deeper" / "fine.py")
    trees = SourceTrees([tree])
    for name in ("file.py", "folder/near.py", "folder", "inner.py"):
        with pytest.raises(InputError):
            trees.read(tree / name)
    assert find_modules([tree]) == [tree / "deeper" / "fine.py"]


def test_only_plain_python_files_of_bounded_size_are_read(tree: Path) -> None:
    os.mkfifo(tree / "pipe.py")
    (tree / "folder.py").mkdir()
    (tree / "notes.txt").write_text("secret")
    (tree / "huge.py").write_bytes(b"#" * (MAX_SOURCE_BYTES + 1))
    trees = SourceTrees([tree])
    for name, words in (
        ("pipe.py", "is not a plain file"),
        ("folder.py", "is not a plain file"),
        ("notes.txt", "is not a Python file"),
        ("huge.py", f"a module of up to {MAX_SOURCE_BYTES} is reviewed"),
    ):
        with pytest.raises(InputError, match=words):
            trees.read(tree / name)
