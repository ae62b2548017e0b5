"""``python -m pyspark_ringcast.pipeline``, and what spark-submit is given."""

from __future__ import annotations

from pyspark_ringcast.pipeline._cli import main

if __name__ == "__main__":
    main()
