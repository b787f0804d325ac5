"""The pages in the order in which somebody reads them: for the list in `index.md` and the navigation of the site."""

from __future__ import annotations

from pathlib import Path
from typing import Final

#: Section → group ("" for none) → pages. The decisions are all files of `adr`.
PAGES: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "Start": {
        "": (
            "tutorial/first-project",
            "tutorial/model-tree",
            "tutorial/commands",
            "architecture",
            "glossary",
        ),
        "Coming from": (
            "explanation/coming-from-celery",
            "explanation/coming-from-temporal",
            "explanation/coming-from-langgraph",
            "explanation/coming-from-bullmq",
        ),
    },
    "Guides": {
        "Agents": (
            "howto/agents",
            "howto/model-agents",
            "howto/local-models",
            "howto/command-agents",
            "howto/sandbox",
            "howto/worktrees",
            "howto/prompts",
            "howto/testing",
        ),
        "Trees": (
            "howto/waiting-policies",
            "howto/questions",
            "howto/human-in-the-loop",
            "howto/approvals",
            "howto/structured-messages",
            "howto/plans",
            "howto/timers",
            "howto/forks",
        ),
        "Limits": ("howto/steps", "howto/budgets", "howto/limits", "howto/provider-limits"),
        "Operations": (
            "howto/console",
            "howto/transcripts",
            "howto/production",
            "howto/metrics",
            "howto/troubleshooting",
            "howto/worker-versions",
            "howto/notifications",
            "howto/encryption",
            "howto/audit-report",
            "howto/mcp",
        ),
    },
    "Concepts": {
        "": (
            "explanation/states",
            "explanation/routing",
            "explanation/text-answers",
            "explanation/audit",
            "security",
            "threat-model",
            "performance",
        )
    },
    "Reference": {
        "": (
            "reference/cli",
            "reference/screens",
            "reference/json",
            "reference/python",
            "reference/testing",
            "reference/settings",
            "reference/events",
            "reference/metrics",
            "reference/redis-keys",
            "reference/versions",
            "protocol",
            "external-programs",
        )
    },
}

DOCS: Final = Path(__file__).parent


def decisions() -> list[str]:
    """Return the pages of the decisions, by number."""
    return sorted(f"adr/{page.stem}" for page in (DOCS / "adr").glob("*.md"))


def title(page: str) -> str:
    """Return the first heading of a page."""
    return (DOCS / f"{page}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def contents() -> str:
    """Return the list of all pages in Markdown."""
    parts = []
    for section, groups in PAGES.items():
        rows = [f"## {section}", ""]
        for group, pages in groups.items():
            links = ", ".join(f"[{title(page)}]({page}.md)" for page in pages)
            rows.append(f"- **{group}**: {links}" if group else f"- {links}")
        parts.append("\n".join(rows))
    first, *_, last = decisions()
    parts.append(
        "## Decisions\n\n"
        f"Why it is as it is: the folder `adr`, from [{title(first)}]({first}.md) to\n"
        f"[{title(last)}]({last}.md)."
    )
    return "\n\n".join(parts) + "\n"


def navigation() -> list[object]:
    """Return the navigation in the form of mkdocs."""
    nav: list[object] = [{"Home": "index.md"}]
    for section, groups in PAGES.items():
        items: list[object] = []
        for group, pages in groups.items():
            files = [f"{page}.md" for page in pages]
            items += [{group: files}] if group else files
        if section == "Concepts":
            items.append({"Decisions": [f"{page}.md" for page in decisions()]})
        nav.append({section: items})
    return nav
