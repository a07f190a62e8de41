"""What threads.py wants of C: work that helpers join without the GIL, and where one wakes."""

import threading

cdef extern from "seats.h" nogil:
    ctypedef struct fd_cpus:
        pass
    bint fd_seat(int thread, Py_ssize_t index, Py_ssize_t count, fd_cpus *before)
    void fd_unseat(int thread, const fd_cpus *before)


cdef void take_part(Work work) noexcept nogil:
    work.take_part()


cdef class Work:
    """What any number of threads can do together: each that takes part does what is left to do."""

    def __cinit__(self):
        self.offer.run = <void (*)(void *) noexcept nogil>take_part
        self.offer.self = <void *>self

    cdef void take_part(self) noexcept nogil:
        pass

    def work(self):
        """Take part."""
        with nogil:
            self.take_part()


cdef class Called(Work):
    """Work that is a Python function without arguments, which raises nothing."""

    cdef object function

    def __init__(self, function):
        self.function = function

    cdef void take_part(self) noexcept nogil:
        with gil:
            self.function()


cdef class Calls:
    """Work that helping threads look for."""

    cdef fd_calls calls

    def offer(self, Work work, Py_ssize_t helpers):
        """Let so many helpers join; return how many are wanted in all beyond those that look."""
        return fd_make_offer(&self.calls, &work.offer, helpers)

    def withdraw(self, Work work):
        """Let no more helpers join, and wait for those that have."""
        with nogil:
            fd_withdraw(&self.calls, &work.offer)

    def help(self):
        """Join one work after another until some 2 ms pass without any."""
        with nogil:
            fd_help(&self.calls)

    @property
    def wanted(self):
        """Whether some work wants more helpers."""
        return fd_wanted(&self.calls)


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
