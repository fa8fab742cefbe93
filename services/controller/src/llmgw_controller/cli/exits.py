"""What `llmgwctl` exits with.

0    fine
1    trouble was found; the words are right and the fleet's state refuses them (in use, busy, not ready);
     or the call failed in a way that has no number of its own, a bug of llmgwctl among them
2    no fresh data: no leader answers, or what it told is old
64   usage: the words typed are wrong, or name what is not there (EX_USAGE of sysexits.h)
130  ended with Ctrl-C (128 and the number of SIGINT, as shells count)

`why` answers with its number: 0 fits now, 10 fits after an eviction, 11 never fits.
"""

EXIT_TROUBLE = 1
EXIT_NO_DATA = 2
EXIT_USAGE = 64
EXIT_INTERRUPTED = 130
EXIT_AFTER_EVICTION = 10
EXIT_NEVER_FITS = 11
