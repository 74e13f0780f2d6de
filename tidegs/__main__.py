"""`python -m tidegs`."""

import sys

from tidegs.cli.main import main

sys.exit(main())
