"""Run `dflash-doctor profile` on every row of tests/truth/peaks.json and print truth, forecast, error, time.

    python tests/bench/profile_accuracy.py [ROW ...]

Each row is a process of its own, imports included; seconds are wall-clock, memory is the process's peak.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROWS = Path(__file__).parent.parent / "truth" / "peaks.json"
PROGRAM = "import sys; sys.argv[0] = 'dflash-doctor'; from dflash_doctor.cli import main; sys.exit(main())"


def flags_of(row: dict[str, Any], config: Path) -> list[str]:
    """Write a row as the flags of `profile`."""
    flags = ["--config", str(config), "--mode", row["mode"], "--format", "json"]
    flags += ["--batch", str(row["batch"]), "--seq", str(row["seq"]), "--dtype", row["dtype"]]
    flags += ["--attn", row.get("attn") or "sdpa"]
    flags += ["--linear-attention", "fused" if row.get("fla", True) else "fallback"]
    if row["mode"] == "train":
        flags += ["--optimizer", row["optimizer"].replace("_", "-")]
        flags += ["--clip", "1.0"] if row.get("clip") else []
        flags += ["--gradient-checkpointing"] if row.get("gradient_checkpointing") else []
    return flags


def run(row: dict[str, Any]) -> tuple[dict[str, Any], float, float]:
    """Profile one row; return the report, the seconds and the peak memory in GiB."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(json.dumps(row["config"]))
        started = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, "profile", *flags_of(row, config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
    if status:
        raise SystemExit(f"profile failed: {text.decode()[:500]}")
    return json.loads(text), seconds, usage.ru_maxrss / 2**20


def main(names: list[str]) -> None:
    """Print the table."""
    rows = json.loads(ROWS.read_text())
    errors: dict[str, list[float]] = {"allocated": [], "reserved": []}
    print("| row | truth allocated | forecast | error | truth reserved | forecast | error | s | GiB |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in names or rows:
        report, seconds, memory = run(rows[name])
        cells = []
        for kind in ("allocated", "reserved"):
            truth, forecast = rows[name]["truth"][f"peak_{kind}"], report[f"peak_{kind}_bytes"]
            error = 100 * (forecast / truth - 1)
            errors[kind].append(abs(error))
            cells += [f"{truth:,}", f"{forecast:,}", f"{error:+.4f} %"]
        print(f"| {name} | {' | '.join(cells)} | {seconds:.1f} | {memory:.2f} |", flush=True)
    for kind, values in errors.items():
        print(f"{kind}: median {statistics.median(values):.4f} %, worst {max(values):.4f} %")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main(sys.argv[1:])
