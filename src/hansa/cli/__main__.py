"""`python -m hansa.cli` is `hansa`."""

import sys

from hansa.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
