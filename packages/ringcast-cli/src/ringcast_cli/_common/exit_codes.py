"""What the exit codes mean."""

from __future__ import annotations

from typing import Final

OK: Final = 0
FAILED: Final = 1
"""The operation was refused or did not succeed; one sentence on standard error says why."""
USAGE: Final = 2
"""The command line makes no sense."""
SKIPPED: Final = 3
"""An import ran to its end and skipped rows (``--on-error skip``)."""
REMARKS: Final = 3
"""The doctor found nothing that has failed, and has warnings, or could not check everything."""
INTERRUPTED: Final = 130
