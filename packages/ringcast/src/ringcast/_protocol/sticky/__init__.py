"""Exclusive ownership: one owner of each partition at every moment. The proof is in ``docs/sticky.md``.

Pure machines over ``records`` and ``fence``: ``evidence`` says when a session is over, ``leader`` which write comes
next, ``ownership`` what a worker may do.
"""
