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
#include <sched.h>
#include <time.h>
#endif

/* Looks of a wait: at first nothing comes between them, which takes some 20 µs, more than tasks
   usually differ; on a busy machine what is waited for may need the very processor that looking
   burns, so then others come first, and at last the processor may rest. */
#define FD_SPINS 2000
#define FD_YIELDS 6000

typedef struct {
    int64_t next;
    char apart[120]; /* not on one line of a cache, nor on two that are fetched together */
    int64_t done;
    char behind[120];
} fd_tickets;

/* Take the next number. */
static inline int64_t fd_take(int64_t *next)
{
#ifdef _MSC_VER
    return InterlockedExchangeAdd64(next, 1);
#else
    return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED);
#endif
}

/* Report a task done: what it wrote is seen by whoever sees the count. */
static inline void fd_report(int64_t *done)
{
#ifdef _MSC_VER
    InterlockedExchangeAdd64(done, 1);
#else
    __atomic_fetch_add(done, 1, __ATOMIC_RELEASE);
#endif
}

static inline int64_t fd_count(int64_t *done)
{
#ifdef _MSC_VER
    return InterlockedExchangeAdd64(done, 0);
#else
    return __atomic_load_n(done, __ATOMIC_ACQUIRE);
#endif
}

/* Let time pass after look number `look` of a wait. */
static inline void fd_pass(int64_t look)
{
    if (look < FD_SPINS) {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#endif
        return;
    }
#ifdef _MSC_VER
    Sleep(0);
#else
    if (look < FD_YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){0, 50000}, NULL);
#endif
}

/* Wait until `count` tasks are done. */
static inline void fd_await(int64_t *done, int64_t count)
{
    for (int64_t look = 0; fd_count(done) < count; look++)
        fd_pass(look);
}

/* Wait until `count` tasks are done or the processor might rest, some 2 ms; tell whether they
   are. */
static inline int fd_linger(int64_t *done, int64_t count)
{
    for (int64_t look = 0; look < FD_YIELDS && fd_count(done) < count; look++)
        fd_pass(look);
    return fd_count(done) >= count;
}

#endif
