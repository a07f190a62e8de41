/* Where a thread wakes. On a virtual machine an idle processor may have been taken off the real
   one; Linux then does not take it for idle and wakes a thread on the processor of whoever calls
   it, where it waits 3 ms for its turn and may stay for 20. So it is told where to wake, and
   that it may go elsewhere as soon as it has. */
#ifndef FASTDR_SEATS_H
#define FASTDR_SEATS_H

#ifdef __linux__
#include <sched.h>

typedef cpu_set_t fd_cpus;

/* Leave `thread` every `count`th of its processors without the caller's, from number `index` on;
   put what it had into `before`. Return 0 if nothing was changed. */
static inline int fd_seat(int thread, ptrdiff_t index, ptrdiff_t count, fd_cpus *before)
{
    fd_cpus share;
    const int busy = sched_getcpu();
    ptrdiff_t others = 0;
    CPU_ZERO(&share);
    if (sched_getaffinity(thread, sizeof *before, before))
        return 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (cpu != busy && CPU_ISSET(cpu, before) && others++ % count == index)
            CPU_SET(cpu, &share);
    return CPU_COUNT(&share) && sched_setaffinity(thread, sizeof share, &share) == 0;
}

static inline void fd_unseat(int thread, const fd_cpus *before)
{
    sched_setaffinity(thread, sizeof *before, before);
}
#else
typedef int fd_cpus;
#define fd_seat(thread, index, count, before) (0)
#define fd_unseat(thread, before) ((void)0)
#endif

#endif
