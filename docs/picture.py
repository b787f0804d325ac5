"""The pictures in the README: a real run of the demo in a pseudo terminal; `make picture` takes them anew."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

IMAGES = Path(__file__).parent / "images"
COLUMNS, ROWS = 100, 18
#: The moment that is shown: the first at which so much of the tree is over.
OVER = 0.6
#: Lines of the report that are shown.
WORST = 8

#: Bright enough to be read on its own dark ground, whatever is around it.
_THEME = TerminalTheme(
    (22, 27, 34),
    (230, 237, 243),
    [
        (72, 79, 88),
        (255, 123, 114),
        (86, 211, 100),
        (227, 179, 65),
        (121, 192, 255),
        (210, 168, 255),
        (86, 212, 221),
        (230, 237, 243),
    ],
)
#: Without a font from elsewhere: a picture in a README may load nothing.
_FORMAT = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; \
font-size: {char_height}px; line-height: {line_height}px; white-space: pre; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">\
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
#: What the demo sends beside text: colours, a cursor that goes up and a line that is cleared.
_CONTROL = re.compile(r"\x1b\[\??(?P<number>[\d;]*)(?P<end>[A-Za-z])|\r|\n")


def main() -> None:
    """Run the demo and write what it showed half-way, and what it showed in the end."""
    shown = list(screens(record([sys.executable, "-m", "orchestrator", "demo"], columns=COLUMNS, rows=ROWS)))
    last = shown[-1]
    report = next(n for n, line in enumerate(last) if _plain(line).startswith("Worst modules first"))
    end = next(n for n, line in enumerate(last) if _plain(line).startswith("What to try next")) - 1
    blank = max(n for n in range(report, end - 1) if not _plain(last[n]))
    IMAGES.mkdir(exist_ok=True)
    draw(
        IMAGES / "demo-tree.svg",
        "make demo",
        next(screen for screen in shown if _over(screen) >= OVER),
        COLUMNS,
    )
    draw(
        IMAGES / "demo-report.svg",
        "make demo, at its end",
        [*last[report : report + WORST], "…", *last[blank:end]],
        COLUMNS,
    )


def record(
    command: list[str],
    *,
    columns: int,
    rows: int,
    env: Mapping[str, str] = os.environ,
    folder: Path | None = None,
    until: bytes = b"",
) -> str:
    """What a command writes to a terminal of its own, until it ends or has written ``until``."""
    screen, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = {**env, "TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": str(rows)}
    running = subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=env, cwd=folder)
    os.close(inside)
    written = b""
    while not (until and until in written):
        try:
            written += os.read(screen, 65_536)
        except OSError:  # the command has closed its end
            break
    else:
        running.terminate()
    running.wait()
    os.close(screen)
    return written.decode(errors="ignore")


def screens(written: str) -> Iterator[list[str]]:
    """Every line from the first on, colours included, before each redrawing and at the end."""
    lines, row, begin = [""], 0, 0
    for control in _CONTROL.finditer(written):
        lines[row] += written[begin : control.start()]
        begin = control.end()
        match control["end"]:
            case "K":
                if row == len(lines) - 1:
                    yield list(lines)
                lines[row] = ""
            case "A":
                row -= int(control["number"] or 1)
            case "m":
                lines[row] += control.group()
            case None if control.group() == "\n":
                row += 1
                lines += [""] * (row == len(lines))
    yield lines


def _over(screen: list[str]) -> float:
    """How much of the tree is over; only of a tree that has been launched as a whole."""
    text = _plain("\n".join(screen))
    found = re.search(r"(\d+)/(\d+) children done", text)
    launched = re.search(r"(\d+) launched", text)
    whole = found is not None and launched is not None and found[2] == launched[1]
    return int(found[1]) / int(found[2]) if found and whole else 0.0


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text).rstrip()


def draw(path: Path, title: str, lines: list[str], columns: int, *, folded: bool = False) -> None:
    """Write lines with their colours as a picture; those that are too long are cut, or folded as a terminal does."""
    console = Console(
        record=True, width=columns, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    shown = [Text.from_ansi(line) for line in lines]
    if folded:
        shown = [part for text in shown for part in text.divide(range(columns, max(len(text), 1), columns))]
    for text in shown:
        console.print(text, no_wrap=True, overflow="ellipsis", highlight=False)
    path.parent.mkdir(exist_ok=True)
    picture = console.export_svg(title=title, theme=_THEME, code_format=_FORMAT, unique_id=path.stem)
    path.write_text(picture, encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
