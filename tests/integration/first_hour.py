"""The first hour of a stranger: docs/tutorial.md typed on a machine that has nothing yet.

Makes a bare Debian in a directory with debootstrap, puts a clone of this repository's HEAD there, and types what the
page says as a user without rights, from `make setup` to Ctrl-C at `ringcast up`. Each command has to print what the
page says. Of this machine it takes the Rust toolchain, the addresses of pip's index and the certificates; the network
is shared. It needs root, debootstrap and the package index of the distribution. build/first-hour.json has the times.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.integration.console_pages import examples_of, is_printed

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs/tutorial.md"
USER: Final = "stranger"
HOME: Final = Path("/home") / USER
_PACKAGES: Final = "ca-certificates,gcc,git,libc6-dev,make,procps,python3,python3-venv"
_SHARED_VARIABLES: Final = re.compile(r"(PIP_(?!FIND_LINKS)|CARGO_HTTP_|[a-z]+_proxy$|SSL_CERT_|CURL_CA_BUNDLE$).*")
_SETUP_S: Final = 1_800.0
_COMMAND_S: Final = 120.0
_DONE: Final = "typed-and-done"


class Mismatch(Exception):
    """A command prints something else than the page says."""


class Terminal:
    """A shell of the stranger's. It prints to this process, or, as at a desk, to a terminal of its own."""

    def __init__(self, process: asyncio.subprocess.Process, keys: int | None) -> None:
        self._process = process
        self._keys = keys
        self.printed = ""

    @classmethod
    async def open(cls, machine: Path, environment: dict[str, str], *, with_keys: bool = False) -> Terminal:
        """``with_keys``: Ctrl-C can be typed."""
        command = ["chroot", f"--userspec={USER}", str(machine), "/usr/bin/env", "-i", f"HOME={HOME}", f"USER={USER}"]
        command += [f"{name}={value}" for name, value in environment.items()]
        keys, screen = os.openpty() if with_keys else (None, None)
        process = await asyncio.create_subprocess_exec(
            *command,
            *("/bin/bash", "--norc", "--noediting", *(["-i"] if with_keys else [])),
            cwd="/",
            stdin=screen if screen is not None else asyncio.subprocess.PIPE,
            stdout=screen if screen is not None else asyncio.subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_own_terminal if with_keys else None,
        )
        if screen is not None:
            os.close(screen)
        terminal = cls(process, keys)
        if keys is not None:
            asyncio.get_running_loop().add_reader(keys, terminal._read_keys)
            terminal.press("stty -echo; PS1=; PS2=\n")
        await terminal.type(f"cd {HOME}")
        return terminal

    def press(self, keys: str) -> None:
        """Types without waiting."""
        if self._keys is not None:
            os.write(self._keys, keys.encode())
        else:
            assert self._process.stdin is not None
            self._process.stdin.write(keys.encode())

    async def type(self, command: str, within_s: float = _COMMAND_S) -> str:
        """Types a command; what it prints, and its exit code where that is not 0, as pages write it."""
        self.press(f'{command}\necho "{_DONE[:5]}""{_DONE[5:]} $?"\n')
        found = await self.until(rf"(?s)(.*?){_DONE} (\d+)\r?\n", within_s)
        printed = found[1].replace("\r\n", "\n")
        return printed + (f"[exit code {found[2]}]\n" if found[2] != "0" else "")

    async def until(self, pattern: str, within_s: float) -> re.Match[str]:
        """Waits until it has printed this, and forgets what came up to there."""
        async with asyncio.timeout(within_s):
            while (found := re.search(pattern, self.printed)) is None:
                if self._keys is not None:
                    await asyncio.sleep(0.05)
                    continue
                assert self._process.stdout is not None
                more = await self._process.stdout.read(65_536)
                if not more:
                    raise Mismatch(f"the shell has ended after {self.printed!r}")
                self.printed += more.decode()
        self.printed = self.printed[found.end() :]
        return found

    def _read_keys(self) -> None:
        assert self._keys is not None
        try:
            self.printed += os.read(self._keys, 65_536).decode(errors="replace")
        except OSError:  # the shell has ended
            asyncio.get_running_loop().remove_reader(self._keys)


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Clock:
    """Says what was done, and when."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.steps: dict[str, float] = {}

    def done(self, what: str) -> None:
        """That was it."""
        self.steps[what] = round(time.monotonic() - self._began, 1)
        minutes, seconds = divmod(int(self.steps[what]), 60)
        print(f"{minutes}:{seconds:02} {what}", flush=True)


def make_machine(machine: Path, mirror: str, suite: str) -> None:
    """Installs a bare Debian, with what the page asks for but Rust."""
    words = ["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", suite, str(machine), mirror]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["chroot", machine, "useradd", "--create-home", "--shell", "/bin/bash", USER], check=True)
    (machine / "opt/rust").mkdir()
    for file in ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"):
        if Path(file).exists():
            shutil.copy(file, machine / file[1:])
    bundle = machine / HOME.relative_to("/") / "ringcast.bundle"
    subprocess.run(["git", "bundle", "create", "--quiet", bundle, "HEAD"], cwd=ROOT, check=True)


def join(machine: Path) -> None:
    """Mounts what a running machine has, in the namespace of this process alone, and this one's Rust."""
    rust = subprocess.run(["rustc", "--print", "sysroot"], check=True, capture_output=True, text=True).stdout.strip()
    for words in (
        ("--rbind", "/dev", machine / "dev"),
        ("-t", "proc", "proc", machine / "proc"),
        ("--bind", rust, machine / "opt/rust"),
    ):
        subprocess.run(["mount", *words], check=True)


def _shell_blocks() -> Iterator[str]:
    """What the page has one type before its first example."""
    yield from re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


async def live_through(machine: Path, clock: Clock) -> int:
    """Types the page; returns how many commands that were.

    Raises:
        Mismatch: one prints something else.
        TimeoutError: one does not end.
    """
    environment = {name: value for name, value in os.environ.items() if _SHARED_VARIABLES.match(name)}
    environment |= {"PATH": "/opt/rust/bin:/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "dumb"}
    environment["VIRTUAL_ENV_DISABLE_PROMPT"] = "1"  # a prompt would be taken for something that was printed
    install, start = (block.splitlines() for block in _shell_blocks())
    first = await Terminal.open(machine, environment, with_keys=True)
    await _type(first, "git -c advice.detachedHead=false clone --quiet ringcast.bundle ringcast && cd ringcast", "")
    for line in install:
        await _type(first, line, "[...]\n", _SETUP_S)
        clock.done(line)
    for line in start:
        first.press(f"{line}\n")
    await first.until(r"Ringcast is up\. Ctrl-C stops it\.", _COMMAND_S)
    clock.done(" ".join(start))
    second = await Terminal.open(machine, environment)
    await _type(second, f"mkdir hour && cd hour && source {HOME}/ringcast/.venv/bin/activate", "")
    examples = examples_of(PAGE)
    for command, wanted in examples:
        await _type(second, command, wanted)
        clock.done(command.splitlines()[0][:100])
    first.press("\x03")
    await first.type("true")
    clock.done("Ctrl-C")
    return len(install) + len(start) + len(examples)


async def _type(terminal: Terminal, command: str, wanted: str, within_s: float = _COMMAND_S) -> None:
    got = await terminal.type(command, within_s)
    if not is_printed(wanted, got) or (wanted == "[...]\n" and "[exit code" in got):
        raise Mismatch(f"$ {command}\n{got}\nand not\n{wanted}")


def _mirror() -> str:
    """Where this machine has its packages from."""
    for file in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        if file.exists() and (
            found := re.search(r"^(?:URIs: *|deb +(?:\[.*?\] +)?)(\S+)", file.read_text(), re.MULTILINE)
        ):
            return found[1]
    sys.exit("first-hour: apt says no address of packages: give one with --mirror")


def _suite() -> str:
    found = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    return found[1] if found is not None else "stable"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--machine", type=Path, default=ROOT / "build/first-hour", help="where to make it (removed after)"
    )
    parser.add_argument("--mirror", help="where Debian's packages are (default: as apt says)")
    parser.add_argument("--keep", action="store_true", help="leave the machine there")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    if os.geteuid() != 0:
        sys.exit("first-hour: it needs root, to make a machine in a directory")
    if shutil.which("debootstrap") is None:
        sys.exit("first-hour: debootstrap is missing: install Debian's package of that name")
    if not given.inside and given.machine.exists():
        sys.exit(f"first-hour: {given.machine} is there already: name another directory with --machine, or remove it")
    if not given.inside:  # what it starts and mounts there ends with it
        again = [sys.executable, "-m", "tests.integration.first_hour", *(words or sys.argv[1:]), "--inside"]
        unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the child takes it
        code = subprocess.run([*unshare, *again]).returncode
        if not given.keep:
            shutil.rmtree(given.machine, ignore_errors=True)
        sys.exit(code)
    clock = Clock()
    try:
        make_machine(given.machine, given.mirror or _mirror(), _suite())
        clock.done("a bare Debian is installed")
        join(given.machine)
        count = asyncio.run(live_through(given.machine, clock))
    except (Mismatch, TimeoutError, subprocess.CalledProcessError) as error:
        sys.exit(f"first-hour: FAILED: {str(error) or 'a command did not end'}")
    except KeyboardInterrupt:
        sys.exit("first-hour: stopped")
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build/first-hour.json").write_text(json.dumps(clock.steps, indent=2) + "\n")
    print(f"first-hour: {count} commands of docs/tutorial.md were typed, and printed what it says")


if __name__ == "__main__":
    main()
