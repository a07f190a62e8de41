/* Offers of work that helping threads look for and join, without the GIL. */
#ifndef FASTDR_CALLS_H
#define FASTDR_CALLS_H

#include "tickets.h"

typedef struct fd_offer {
    void (*run)(void *self);
    void *self;
    int64_t wanted, joined; /* helpers still welcome, and those that have come */
    int64_t left;
    struct fd_offer *behind;
} fd_offer;

typedef struct {
    int64_t lock;
    int64_t looking; /* helpers that look for an offer */
    fd_offer *first;
    int64_t made; /* offers ever made: helpers watch it */
} fd_calls;

static inline int fd_try_lock(int64_t *lock)
{
#ifdef _MSC_VER
    return !InterlockedExchange64(lock, 1);
#else
    return !__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE);
#endif
}

static inline void fd_lock(int64_t *lock)
{
    for (int64_t look = 0; !fd_try_lock(lock); look++)
        fd_pass(look);
}

static inline void fd_unlock(int64_t *lock)
{
#ifdef _MSC_VER
    InterlockedExchange64(lock, 0);
#else
    __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
#endif
}

/* Let so many helpers join; return how many are wanted in all beyond those that look. */
static inline int64_t fd_make_offer(fd_calls *calls, fd_offer *offer, int64_t helpers)
{
    int64_t wanted = 0;
    offer->wanted = helpers;
    offer->joined = offer->left = 0;
    fd_lock(&calls->lock);
    offer->behind = calls->first;
    calls->first = offer;
    for (const fd_offer *other = offer; other; other = other->behind)
        wanted += other->wanted;
    wanted -= calls->looking;
    fd_unlock(&calls->lock);
    fd_report(&calls->made);
    return wanted;
}

/* Let no more helpers join, and wait for those that have; nothing if it was never offered. */
static inline void fd_withdraw(fd_calls *calls, fd_offer *offer)
{
    fd_lock(&calls->lock);
    fd_offer **place = &calls->first;
    while (*place && *place != offer)
        place = &(*place)->behind;
    if (*place)
        *place = offer->behind;
    fd_unlock(&calls->lock);
    fd_await(&offer->left, offer->joined);
}

/* The first offer that wants helpers, or NULL; under the lock. */
static inline fd_offer *fd_open_offer(fd_calls *calls)
{
    fd_offer *offer = calls->first;
    while (offer && !offer->wanted)
        offer = offer->behind;
    return offer;
}

/* Join an offer; NULL if none wants more: then the caller counts as looking. */
static inline fd_offer *fd_join(fd_calls *calls)
{
    fd_lock(&calls->lock);
    fd_offer *offer = fd_open_offer(calls);
    if (offer) {
        offer->wanted--;
        offer->joined++;
    } else {
        calls->looking++;
    }
    fd_unlock(&calls->lock);
    return offer;
}

/* Whether some offer wants helpers. */
static inline int fd_wanted(fd_calls *calls)
{
    fd_lock(&calls->lock);
    const int wanted = fd_open_offer(calls) != NULL;
    fd_unlock(&calls->lock);
    return wanted;
}

/* Join one offer after another until some 2 ms pass without any. */
static inline void fd_help(fd_calls *calls)
{
    int called = 1;
    while (called) {
        const int64_t made = fd_count(&calls->made);
        fd_offer *offer = fd_join(calls);
        if (offer) {
            offer->run(offer->self);
            fd_report(&offer->left); /* it may be gone now */
            continue;
        }
        called = fd_linger(&calls->made, made + 1);
        fd_lock(&calls->lock);
        calls->looking--;
        fd_unlock(&calls->lock);
    }
}

#endif
