"""Certified l_2 accuracy: boosted smoothed ensembles against what costs as much, and beside published figures.

    python benchmarks/accuracy/certified.py --set mnist --data DIR [--sigmas 0.5,0.25,1] [--n 10000] [--rows NAMES]

Sets, each with its rows, its claim and its choices in `benchmarks/lib/rows`:
  mnist      forms of boosting and their rivals, a minute of training each (l2_mnist.py)
  published  all training images, n = 100,000, beside published figures (l2_published.py)
  long       the same after a training as long as the published ones (l2_long.py)
  cifar10    as far as a CPU reaches (cifar10_l2.py)
  fast       all of CIFAR-10 with members made for speed, at several training costs (cifar10_fast.py)
  gtsrb      traffic signs: what the recipe trains against what costs as much (gtsrb_l2.py)

Every row is trained, exported, and certified by the runtime's own procedure on the exported file. Hardware: any CPU;
the record names it. Rows are recorded one by one and certificates kept as they come: after a kill, the same command
does what is missing.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))  # for `benchmarks`, which is not installed
from benchmarks.lib.certified import certify_rows, parse
from benchmarks.lib.rows import cifar10_fast, cifar10_l2, gtsrb_l2, l2_long, l2_mnist, l2_published

SETS = {
    "mnist": l2_mnist.SET,
    "published": l2_published.SET,
    "long": l2_long.SET,
    "cifar10": cifar10_l2.SET,
    "fast": cifar10_fast.SET,
    "gtsrb": gtsrb_l2.SET,
}


def main() -> int:
    """Train and certify what is missing."""
    options = parse(__doc__, SETS)
    certify_rows(options, SETS[options.set])
    return 0


if __name__ == "__main__":
    sys.exit(main())
