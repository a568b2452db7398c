"""Runs before a child's own program: drops privileges and ties the child's life to its parent's.

Started by path with ``python -I -S``. A ``preexec_fn`` would run Python between fork and exec, which can deadlock
a parent that has threads. Arguments: parent pid, death signal, uid and gid (``-`` to keep), program, arguments.
"""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def _drop_to(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def main(arguments: list[str]) -> int:
    parent, death_signal, uid, gid, *argv = arguments
    if uid != "-":
        _drop_to(int(uid), int(gid))
    # After the change of user: the kernel forgets the death signal when credentials change.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0) != 0:
        sys.stderr.write(f"FATAL: prctl: {os.strerror(ctypes.get_errno())}\n")
        return 126
    if os.getppid() != int(parent):
        sys.stderr.write("FATAL: the supervisor ended before its child began\n")
        return 126
    try:
        os.execv(argv[0], argv)  # noqa: S606 - argv is a list of the stack's own making
    except OSError as error:
        sys.stderr.write(f"FATAL: cannot run {argv[0]}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
