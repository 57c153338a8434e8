"""Measure how long the programs take to answer `--help`: `python tests/bench/help_time.py`.

It prints the median of 10 runs of each, after one that warms the file cache; interpreter start included.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
NUM_RUNS = 10
PROGRAMS = {"dflash-doctor": "dflash_doctor.cli", "dflash-train": "dflash_train.cli"}


def help_seconds(module: str) -> float:
    """Run one `--help` in a fresh interpreter and give its wall-clock seconds."""
    program = [sys.executable, "-c", f"from {module} import main; main()", "--help"]
    started = time.perf_counter()
    subprocess.run(program, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> None:
    """Print a line a program."""
    for name, module in PROGRAMS.items():
        help_seconds(module)
        runs = [help_seconds(module) for _ in range(NUM_RUNS)]
        print(f"{name} --help: median {statistics.median(runs):.3f} s of {NUM_RUNS} (most {max(runs):.3f} s)")


if __name__ == "__main__":
    main()
