"""`python -m surefoot_activate install` and `remove`."""

import sys

from ._installer import main

sys.exit(main())
