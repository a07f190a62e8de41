"""The command ``fastdr``, as ``python -m fastdr``."""

from fastdr.cli import main

if __name__ == "__main__":
    main()
