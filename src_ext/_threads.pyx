"""What threads.py wants of C: a count to wait for, and where a sleeping thread wakes."""

from libc.stdint cimport int64_t

import threading

cdef extern from "tickets.h" nogil:
    void fd_report(int64_t *)
    int64_t fd_count(int64_t *)
    bint fd_linger(int64_t *, int64_t)

cdef extern from "seats.h" nogil:
    ctypedef struct fd_cpus:
        pass
    bint fd_seat(int thread, Py_ssize_t index, Py_ssize_t count, fd_cpus *before)
    void fd_unseat(int thread, const fd_cpus *before)


cdef class Tally:
    """A count that threads raise and wait for without the GIL."""

    cdef int64_t count

    def add(self):
        """Raise the count by one; what was written before is seen by whoever sees it."""
        fd_report(&self.count)

    @property
    def value(self):
        """The count now."""
        return fd_count(&self.count)

    def linger(self, int64_t count):
        """Wait some 2 ms, without sleep, for the count to reach `count`; tell whether it has."""
        cdef bint reached
        with nogil:
            reached = fd_linger(&self.count, count)
        return reached


cdef class Seat:
    """Where the thread that makes it wakes, if another tells it before."""

    cdef int thread
    cdef bint taken
    cdef fd_cpus before

    def __cinit__(self):
        self.thread = threading.get_native_id()

    def take(self, Py_ssize_t index, Py_ssize_t count):
        """Let the thread, which sleeps, wake on the share `index` of `count` of its processors
        without the caller's."""
        self.taken = fd_seat(self.thread, index, count, &self.before)

    def leave(self):
        """Let it run on all its processors again."""
        if self.taken:
            fd_unseat(self.thread, &self.before)
            self.taken = False
