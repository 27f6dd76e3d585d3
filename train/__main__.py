"""`python -m robust.train RECIPE ...`: the command `robust train`, in the form torchrun starts."""

import sys

from robustinfer.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["train"]
    main()
