"""For the compiled modules of fastdr: work that helping threads can join."""

from libc.stdint cimport int64_t

cdef extern from "calls.h" nogil:
    ctypedef struct fd_offer:
        void (*run)(void *) noexcept nogil
        void *self
    ctypedef struct fd_calls:
        pass
    int64_t fd_make_offer(fd_calls *, fd_offer *, int64_t)
    void fd_withdraw(fd_calls *, fd_offer *)
    void fd_help(fd_calls *)
    bint fd_wanted(fd_calls *)


cdef class Work:
    cdef fd_offer offer
    cdef void take_part(self) noexcept nogil
