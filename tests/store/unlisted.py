"""A folder whose members cannot be listed, as over HTTP."""

from weft import WeftError
from weft.store.files import Folder


class UnlistedFolder(Folder):
    """A folder as an HTTP server shows it: it is not listed."""

    def folders(self):
        raise WeftError(f"{self.url} cannot be listed")
