"""`python -m stack`: the same command line as `everturn`."""

import sys

from stack.cli import main

sys.exit(main())
