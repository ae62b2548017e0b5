"""Descriptor sets, as the real protoc makes them of .proto files."""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc

WELL_KNOWN = resources.files("grpc_tools") / "_proto"


@functools.lru_cache(256)
def descriptor_set(text: str, *others: tuple[str, str], imports: bool = True) -> bytes:
    """What ``protoc --descriptor_set_out`` writes of ``main.proto`` with this text, beside others (name, text).

    Without ``imports`` of ``main.proto`` alone.
    """
    with TemporaryDirectory() as made:
        folder = Path(made)
        for name, each in (("main.proto", text), *others):
            (folder / name).write_text(each)
        words = [f"-I{folder}", f"-I{WELL_KNOWN}", f"--descriptor_set_out={folder / 'set'}", "--include_source_info"]
        if protoc.main(["protoc", *words, *(["--include_imports"] if imports else []), "main.proto"]):
            raise ValueError("protoc refuses it")
        return (folder / "set").read_bytes()
