"""The command ``fastdr``, as a script and as ``python -m fastdr``."""

import sys


def main() -> None:
    """Run the command; Ctrl-C ends it without a traceback while its modules are imported, too."""
    try:
        from fastdr.cli import main as command
        command()
    except KeyboardInterrupt:
        sys.stderr.write("fastdr: interrupted; nothing was written\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
