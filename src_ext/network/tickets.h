/* Work handed out in order to any number of threads: tickets.

   Tasks are numbered; a thread takes the next number, waits until all tasks of earlier phases are
   done, does its task and reports. Numbers are given in order, so whatever a thread waits for is
   in the hands of running threads: no thread need ever arrive, and one alone does all the work. */
#ifndef FASTDR_TICKETS_H
#define FASTDR_TICKETS_H

#include <stdint.h>

#ifdef _MSC_VER
#include <windows.h>
#else
#include <time.h>
#endif

/* Looks before the processor is left to others: some 20 µs, more than tasks usually differ. On a
   busy machine what is waited for may need the very processor that the wait would burn. */
#define FD_SPINS 2000

typedef struct {
    int64_t next;
    char apart[120]; /* not on one line of a cache, nor on two that are fetched together */
    int64_t done;
    char behind[120];
} fd_tickets;

static inline int64_t fd_take(fd_tickets *tickets)
{
#ifdef _MSC_VER
    return InterlockedExchangeAdd64(&tickets->next, 1);
#else
    return __atomic_fetch_add(&tickets->next, 1, __ATOMIC_RELAXED);
#endif
}

/* Report a task done: what it wrote is seen by whoever sees the number in fd_await. */
static inline void fd_report(fd_tickets *tickets)
{
#ifdef _MSC_VER
    InterlockedExchangeAdd64(&tickets->done, 1);
#else
    __atomic_fetch_add(&tickets->done, 1, __ATOMIC_RELEASE);
#endif
}

static inline int64_t fd_done(fd_tickets *tickets)
{
#ifdef _MSC_VER
    return InterlockedExchangeAdd64(&tickets->done, 0);
#else
    return __atomic_load_n(&tickets->done, __ATOMIC_ACQUIRE);
#endif
}

/* Wait until `count` tasks are done. */
static inline void fd_await(fd_tickets *tickets, int64_t count)
{
    for (int look = 0; fd_done(tickets) < count; look++) {
        if (look < FD_SPINS) {
#if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
#endif
            continue;
        }
#ifdef _MSC_VER
        Sleep(0);
#else
        nanosleep(&(struct timespec){0, 50000}, NULL);
#endif
    }
}

#endif
