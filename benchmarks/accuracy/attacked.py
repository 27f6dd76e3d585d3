"""Robust l_inf accuracy: every form of boosting against one network, a wider one, and independent ones.

    python benchmarks/accuracy/attacked.py --set mnist --data DIR [--deltas 0.3,0.1] [--seeds 0] [--rows NAMES]

Sets, each with its rows, its claim and its choices in `benchmarks/lib/rows`:
  mnist      every form of boosting, at four radii (linf_mnist.py)
  full       all images and members of full width, beside the paper's figures (linf_full.py)
  cifar10    one-step training of narrow ResNet-20s (cifar10.py)
  fast       all of CIFAR-10 by one-step training of members made for speed (cifar10_linf.py)

Every row is trained, and measured under one attack after the other. Hardware: any CPU; the record names it. Rows are
recorded one by one: after a kill, the same command does what is missing.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.attacked import measure_rows, parse
from benchmarks.lib.rows import cifar10, cifar10_linf, linf_full, linf_mnist

SETS = {"mnist": linf_mnist.SET, "full": linf_full.SET, "cifar10": cifar10.SET, "fast": cifar10_linf.SET}


def main() -> int:
    """Train and measure what is missing."""
    options = parse(__doc__, SETS)
    measure_rows(options, SETS[options.set])
    return 0


if __name__ == "__main__":
    sys.exit(main())
