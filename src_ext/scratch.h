/* Scratch memory in large pages, some of which is kept from one call to the next: to touch a page
   first costs up to 2 µs, and small pages may meet in one place of a cache again and again. */
#ifndef FASTDR_SCRATCH_H
#define FASTDR_SCRATCH_H

#include <stdlib.h>
#include <string.h>

#ifdef __linux__
#include <sys/mman.h>
#endif
#ifdef _MSC_VER
#include <malloc.h>
#endif

#include "calls.h"

#define FD_PAGE ((size_t)1 << 21)
#define FD_KEPT 8              /* blocks kept at most, */
#define FD_MOST (24 * FD_PAGE) /* so large together: the panels of 5000 columns */

static struct {
    int64_t lock;
    size_t total;
    void *at[FD_KEPT];
    size_t size[FD_KEPT];
} fd_kept;

/* A block of `size` bytes, a whole number of pages; NULL if there is no memory. */
static void *fd_take_block(size_t size)
{
    void *found = NULL;
    if (size <= FD_MOST && fd_try_lock(&fd_kept.lock)) {
        for (int i = 0; i < FD_KEPT && !found; i++)
            if (fd_kept.at[i] && fd_kept.size[i] == size) {
                found = fd_kept.at[i];
                fd_kept.at[i] = NULL;
                fd_kept.total -= size;
            }
        fd_unlock(&fd_kept.lock);
    }
    if (found)
        return found;
#ifdef _MSC_VER
    return _aligned_malloc(size, FD_PAGE);
#else
    if (posix_memalign(&found, FD_PAGE, size))
        return NULL;
#ifdef __linux__
    madvise(found, size, MADV_HUGEPAGE);
#endif
    return found;
#endif
}

static void fd_free_block(void *block)
{
#ifdef _MSC_VER
    _aligned_free(block);
#else
    free(block);
#endif
}

/* Keep a block; where there is no room for it, those kept make way. */
static void fd_return_block(void *block, size_t size)
{
    void *gone[FD_KEPT] = {block};
    if (size <= FD_MOST && fd_try_lock(&fd_kept.lock)) {
        int slot = 0;
        while (slot < FD_KEPT && fd_kept.at[slot])
            slot++;
        gone[0] = NULL;
        if (slot == FD_KEPT || fd_kept.total + size > FD_MOST) {
            memcpy(gone, fd_kept.at, sizeof gone);
            memset(fd_kept.at, 0, sizeof gone);
            fd_kept.total = 0;
            slot = 0;
        }
        fd_kept.at[slot] = block;
        fd_kept.size[slot] = size;
        fd_kept.total += size;
        fd_unlock(&fd_kept.lock);
    }
    for (int i = 0; i < FD_KEPT; i++)
        fd_free_block(gone[i]);
}

#endif
