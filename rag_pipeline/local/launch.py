"""Become another program: the last step before a server starts, run as a script of its own.

`python launch.py [--parent PID [--death-signal N]] [--user UID GID] [--named-user UID GID] -- COMMAND ...` resets
what a server must not inherit, gives up root, asks the kernel for a signal when the parent dies, and replaces itself
with the command. Done here and not in `preexec_fn`, which is unsafe in a parent that has threads. Only the standard
library is imported, so the detour costs about 20 ms.
"""

import argparse
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_CLONE_NEWUSER = 0x10000000  # linux/sched.h


def main() -> None:
    """Parse the arguments and exec the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parent", type=int, help="end with this process, which must be the parent")
    parser.add_argument("--death-signal", type=int, default=signal.SIGINT, help="sent when that process dies")
    parser.add_argument("--user", type=int, nargs=2, help="uid and gid to change to")
    parser.add_argument("--named-user", type=int, nargs=2, help="uid and gid to appear as, in a user namespace")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()

    # A shell that starts `rag-pipeline up &` makes its children ignore SIGINT, and ignored signals survive exec.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    os.umask(0o077)
    if arguments.user:
        uid, gid = arguments.user
        os.setgroups([])
        os.setgid(gid)
        os.setuid(uid)
    if arguments.named_user:
        _enter_user_namespace(*arguments.named_user)
    if arguments.parent:
        _end_with_parent(arguments.parent, arguments.death_signal)
    os.execv(arguments.command[0], arguments.command)  # noqa: S606 - a shell would keep the signals' fate unclear


def _end_with_parent(parent: int, death_signal: int) -> None:
    """Ask for a signal when the parent dies (Linux only). After setuid, which clears the request."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the parent process ended before the server was started")


def _enter_user_namespace(uid: int, gid: int) -> None:
    """Appear as `uid`, which has a passwd entry, while files keep the real owner."""
    real_uid, real_gid = os.getuid(), os.getgid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        sys.exit(f"no user namespace: {os.strerror(ctypes.get_errno())}")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {real_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {real_gid} 1")


if __name__ == "__main__":
    main()
