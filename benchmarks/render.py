"""Render benchmarks/RESULTS.md, its detail pages and their plots from benchmarks/results/*.json: `make results`.

No figure in them is typed by hand. A question whose record is missing is named as not measured yet.
"""

import argparse
import sys
from pathlib import Path

from robustinfer.files import write_text

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for `benchmarks`, which is not installed
from benchmarks.lib.details import pages
from benchmarks.lib.record import BENCHMARKS, RESULTS
from benchmarks.lib.topics import results_page


def main() -> None:
    """Write the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=BENCHMARKS, help="folder of RESULTS.md, details and plots")
    options = parser.parse_args()
    found = pages(options.results, options.out / "plots")
    (options.out / "details").mkdir(parents=True, exist_ok=True)
    for old in (options.out / "details").glob("*.md"):
        if old.stem not in found:
            old.unlink()
    for name, text in found.items():
        write_text(options.out / "details" / f"{name}.md", text)
    write_text(options.out / "RESULTS.md", results_page(options.results, found))
    print(f"written: {options.out / 'RESULTS.md'} and {len(found)} detail pages")


if __name__ == "__main__":
    main()
