"""``python -m ringcast_cli``."""

from __future__ import annotations

from ringcast_cli import main

main()
