"""`python -m kernelhead VERB`, where the command itself is not on the path."""

import sys

from kernelhead.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
