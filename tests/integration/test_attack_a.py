from __future__ import annotations
import asyncio, time
from pathlib import Path
import pytest
from ringcast import Change
from tests.integration.test_cli_release_dry_wave import *
from tests.integration.test_cli_release_dry_wave import _run, _stage, _shared, _is_staged, _rows_of
for n in list(globals()):
    if n.startswith("test_"): del globals()[n]

class BadError(Exception):
    def __str__(self): raise RuntimeError("str broken")
class BadRepr:
    def __repr__(self): raise RuntimeError("repr broken")

@pytest.mark.parametrize("what", ["newline", "surr_exc", "baseexc", "hugerepr","strsub"])
async def test_reason(bench, tmp_path, what):
    await bench.create(partition_count=PARTITIONS)
    class MyBase(BaseException): pass
    class S(str):
        def __len__(self): raise RuntimeError("len broken")
    def validate(change):
        if what == "surrogate": return "bad \ud800 x"
        if what == "badstr": raise BadError()
        if what == "badrepr": return BadRepr()
        if what == "newline": return "line1\nline2\x1b[31mred\x00"
        if what == "surr_exc": raise ValueError("\udfff")
        if what == "baseexc": raise MyBase("hm")
        if what == "hugerepr": return b"x" * 50_000_000
        if what == "strsub": return S("abc")
    handled = []
    first = await bench.worker("a", handled.append, labels=SITE, validate=validate)
    other = await bench.worker("b")
    await _shared(first, other)
    await _stage(bench, tmp_path, rows=10)
    t = time.time()
    r = await asyncio.to_thread(bench.cli, "release", "publish", bench.store, 1, *WORDS[:-1], 5)
    print("RESULT", what, r.code, repr(r.out), repr(r.err), round(time.time() - t, 1))
    try:
        h = first.health()
        print("HEALTH", what, h.connected, h)
    except Exception as e:
        print("HEALTHERR", what, repr(e))
    print("STAGED", what, await _is_staged(bench))

@pytest.mark.parametrize("what", ["badstr_handler", "syncself_cancel"])
async def test_handler(bench, tmp_path, what):
    await bench.create(partition_count=PARTITIONS)
    def handler(change):
        if what == "badstr_handler": raise BadError()
    def validate(change):
        if what == "syncself_cancel": asyncio.current_task().cancel()
        return None
    first = await bench.worker("a", handler, labels=SITE, validate=validate)
    other = await bench.worker("b")
    await _shared(first, other)
    await bench.fill(20)
    await asyncio.sleep(1)
    print("HEALTH", what, first.health().connected)
    await _stage(bench, tmp_path, rows=10)
    r = await asyncio.to_thread(bench.cli, "release", "publish", bench.store, 1, *WORDS[:-1], 5)
    print("RESULT", what, r.code, repr(r.out), repr(r.err))
    print("HEALTH", what, first.health().connected)
