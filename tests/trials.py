"""How many random trials a test makes.

A test states its full number of trials, as in `PROGRAMS = trials(1000)`. `make test-all` makes all
of them, `make test` a tenth. `WEFT_FUZZ` is the number of examples of each Hypothesis property:
15 in `make test`, 150 in `make test-all`, 5,000 in `make fuzz`. All other trials scale with it.
"""

import os

EXAMPLES = int(os.environ.get("WEFT_FUZZ", "15"))
FULL = 150
"""The examples of a property at which all tests make their full number of trials."""
FEWEST = 6


def trials(full, limit=None, fewest=FEWEST):
    """Return the number of trials to make: at least `fewest` or `full`, at most `limit`."""
    number = max(min(full, fewest), full * EXAMPLES // FULL)
    return number if limit is None else min(number, limit)


def large(full):
    """Return the size of a hostile input: `full` in `make test-all`, a tenth of it in `make test`.

    An input that costs more than it should is found there.
    """
    return trials(full, full)
