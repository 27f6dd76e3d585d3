"""`python -m robustinfer`: the command `robust`, in the form that torchrun starts."""

from .cli.main import main

if __name__ == "__main__":
    main()
