"""Other libraries that look at images, plates and collections."""

import importlib
import warnings

import yaozarrs


def optional(name):
    """A library that may not be installed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        return None


def is_accepted(path):
    """The opinion of yaozarrs on a store; a warning is an error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yaozarrs.validate_zarr_store(str(path))
    return True
