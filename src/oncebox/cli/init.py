"""Init: what process 1 of a container owes to the others.

The kernel hands it every orphan, to take note of its end, and spares it the signals that it does
not handle. So process 1 does that and nothing else, and the program is its child: nobody can take
the end of a worker from the supervisor that waits for it.
"""

from __future__ import annotations

import os
import signal

FROM_THE_TERMINAL = 0x80
"""SI_KERNEL: every process of the terminal has got it, the program as well."""


def leave_process_one() -> None:
    """Go on in a child if this is process 1, which stays behind and ends with that child."""
    if os.getpid() != 1:
        return
    signals = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    program = os.fork()
    if program:
        raise SystemExit(_serve(program, signals))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(program: int, signals: set[signal.Signals]) -> int:
    """Pass signals on and bury the dead; returns the exit code of the program."""
    while True:
        news = signal.sigwaitinfo(signals)
        if news.si_signo != signal.SIGCHLD and news.si_code != FROM_THE_TERMINAL:
            os.kill(program, news.si_signo)
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if ended[0] == program:
                code = os.waitstatus_to_exitcode(ended[1])
                return code if code >= 0 else 128 - code
