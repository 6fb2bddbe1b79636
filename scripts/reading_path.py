"""Updates the line counts of the reading path in docs/architecture.md:

python -m scripts.reading_path
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "architecture.md"
_ROW = re.compile(r"^\| \[`[^`]+`\]\(\.\./(regard/[\w/]+\.py)\) \| ([\d,]+) \|", re.MULTILINE)
_TOTAL = re.compile(r"^\| \d+ files \| [\d,]+ \|", re.MULTILINE)


def core_files(text: str) -> list[Path]:
    """The files of the reading path, in order."""
    return [ROOT / row[1] for row in _ROW.finditer(text)]


def num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def with_current_counts(text: str) -> str:
    """The document with the line count of every file and of all together as they are now."""

    def counted(row: re.Match[str]) -> str:
        return row[0].replace(f"| {row[2]} |", f"| {num_lines(ROOT / row[1])} |")

    files = core_files(text)
    total = f"| {len(files)} files | {sum(map(num_lines, files)):,} |"
    return _TOTAL.sub(total, _ROW.sub(counted, text))


def main() -> None:
    old = DOCUMENT.read_text(encoding="utf-8")
    new = with_current_counts(old)
    DOCUMENT.write_text(new, encoding="utf-8")
    print("line counts updated" if new != old else "line counts are current")


if __name__ == "__main__":
    main()
