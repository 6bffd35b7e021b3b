"""`python -m tyler` is `tyler`."""

import sys

from tyler.cli import main

sys.exit(main())
