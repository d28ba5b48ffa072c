"""The duties of process 1 in a container: reap orphans and forward signals.

The kernel makes process 1 the parent of every orphan, and does not deliver signals that it does not
handle. So process 1 only forwards signals and reaps children, and the program runs as its child.
There, only the supervisor waits for its workers.
"""

from __future__ import annotations

import os
import signal

FROM_TERMINAL = 0x80
"""SI_KERNEL: the kernel sent the signal to all processes of the terminal, also to the program."""


def leave_process_one() -> None:
    """If this is process 1, fork: the child runs the program, process 1 waits for it and exits."""
    if os.getpid() != 1:
        return
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    program = os.fork()
    if program:
        raise SystemExit(_serve(program, signals))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(program: int, signals: set[signal.Signals]) -> int:
    """Forward signals and reap children until the program ends. Returns its exit code."""
    while True:
        received = signal.sigwaitinfo(signals)
        if received.si_signo != signal.SIGCHLD and received.si_code != FROM_TERMINAL:
            os.kill(program, received.si_signo)
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == program:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code
