"""`python -m poise` is the `poise` command."""

from .cli import main

if __name__ == "__main__":
    main()
