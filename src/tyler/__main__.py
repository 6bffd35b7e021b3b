"""`python -m tyler` is `tyler`."""

import sys

from tyler.cli.main import main

sys.exit(main())
