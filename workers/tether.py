"""Ties a process's life to its parent's, by a signal that Linux sends when the parent ends.

Run by path with ``python -I -S`` it does so before a child's own program, and drops privileges: a ``preexec_fn`` would run
Python between fork and exec, which can deadlock a parent that has threads. Arguments: parent pid, death signal, uid and gid
(``-`` to keep), program, arguments. Standard library only, and nothing of this package.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, signum: int) -> None:
    """Meant is the thread that started this process: it must be one that lasts.

    Raises:
        ProcessLookupError: the parent has ended already.
        OSError: the kernel has no such signal to send.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise ProcessLookupError("the parent ended before its child began")


def _drop_to(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def main(arguments: list[str]) -> int:
    parent, death_signal, uid, gid, *argv = arguments
    # Its starter holds back what would disturb the start, and a mask goes on to whoever comes next.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if uid != "-":
        _drop_to(int(uid), int(gid))
    try:
        # After the change of user: the kernel forgets the death signal when credentials change.
        end_with_parent(int(parent), int(death_signal))
    except OSError as error:
        sys.stderr.write(f"FATAL: {error}\n")
        return 126
    try:
        os.execv(argv[0], argv)  # noqa: S606 - argv is a list of our own making
    except OSError as error:
        sys.stderr.write(f"FATAL: cannot run {argv[0]}: {error.strerror}\n")
    return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
