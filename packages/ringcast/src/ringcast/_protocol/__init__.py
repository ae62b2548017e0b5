"""The decisions of a worker, with no socket, clock, task or randomness of their own.

Time comes in as an argument (seconds of any monotonic clock), randomness as a function; what is to be done comes out as
plain objects. The shell around it (``_session``, ``_membership``, ``_consumers``) carries them out.
"""
