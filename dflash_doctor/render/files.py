"""Write a report's files: JSON for programs, Markdown for people."""

import json
import os
import re
from pathlib import Path

from dflash_doctor.records.report import MemoryReport
from dflash_doctor.render.json import preflight_json
from dflash_doctor.render.markdown import preflight_markdown


def write_report_files(report: MemoryReport, folder: Path, before: MemoryReport | None = None) -> list[Path]:
    """Write `<plan>.json` and `<plan>.md`, each whole or not at all; give their paths."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", report.plan_name).strip("-.") or "plan"
    content = json.dumps(preflight_json(report, before), ensure_ascii=False, indent=2) + "\n"
    texts = {f"{stem}.json": content, f"{stem}.md": preflight_markdown(report, before)}
    paths = []
    for name, text in texts.items():
        path = folder / name
        unfinished = path.with_name(f".{name}.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
        paths.append(path)
    return paths
