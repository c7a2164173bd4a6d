"""The table of rules and entries as a page.

``python -m tests.rules.page`` writes docs/rules.md.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
_HEAD = """# Rules and entries

You look up which rule is enforced at which entry, outside of the state machines.
The state machines check the rules that they cite alike at every entry.
Made from `tests/architecture/rules.toml` by `python -m tests.rules.page`.

* **refused**: a test presents a breach of this rule alone and demands its code.
  Without the rule, the same breach is accepted.
* **tested**: a test of its own demands the refusal.
* A number refers to the reason below the table: the rule does not apply there.
"""


def rules_page() -> str:
    """Return the page."""
    table = tomllib.loads((ROOT / "tests/architecture/rules.toml").read_text())
    entries = table.pop("entries")
    opened_by = table.pop("opened_by")
    sections = [_section(each, table[each], entries[each]) for each in table]
    return "".join([_HEAD, *sections, _modules(opened_by)])


def _modules(opened_by: dict[str, str]) -> str:
    rows = [
        f"| `secagg/{module}` | {behind.replace('_', ' ').replace('.', ': ')} |"
        for module, behind in opened_by.items()
    ]
    return "\n".join(
        [
            "",
            "## Modules",
            "",
            "No other module opens a client's state or hands bytes to it.",
            "",
            "| Module | Entries |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def _section(party: str, rows: dict[str, dict[str, str]], entries: list[str]) -> str:
    reasons: dict[str, int] = {}

    def cell(words: str) -> str:
        kind, _, what = words.partition(": ")
        if kind == "breach":
            return "refused"
        if kind == "test":
            return "tested"
        return f"({reasons.setdefault(what, len(reasons) + 1)})"

    heads = " | ".join(each.replace("_", " ") for each in entries)
    lines = [f"| Rule | | {heads} |", "|---" * (len(entries) + 2) + "|"]
    for name, row in rows.items():
        cells = " | ".join(cell(row[entry]) for entry in entries)
        lines.append(f"| {_label(name, row)} | {row['title']} | {cells} |")
    said = [f"{number}. {what}" for what, number in reasons.items()]
    return "\n".join(["", f"## {party.capitalize()}", "", *lines, "", *said, ""])


def _label(name: str, row: dict[str, str]) -> str:
    digits = [part for part in name.split("_") if part[:1] in "R0123456789"]
    if not name.startswith("R"):
        return ""
    named = ".".join(digits[:-1]) + "-" + digits[-1]
    return ", ".join([named, *row.get("rules", ())])


if __name__ == "__main__":
    (ROOT / "docs/rules.md").write_text(rules_page())
