"""Every number of a run in a file: written after each split, joined with those of other runs."""

from __future__ import annotations

import json
from pathlib import Path

Scores = dict[str, float]
Records = dict[str, dict[int, dict[str, Scores]]]  # set, split, method


def earlier(files: str) -> Records:
    """What earlier runs saved, in files with commas between them; later files count."""
    records: Records = {}
    for file in filter(None, files.split(",")):
        for name, splits in json.loads(Path(file).read_text()).items():
            for index, found in splits.items():
                kept = records.setdefault(name, {})
                kept[int(index)] = kept.get(int(index), {}) | found
    return records


def save(records: Records, file: Path | None) -> None:
    """At once, and whole: a run that is cut short leaves something."""
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    made = file.with_name(file.name + ".part")
    made.write_text(json.dumps(records, indent=1) + "\n")
    made.replace(file)
