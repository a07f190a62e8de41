"""Dense kernels: centred scatter, products with a narrow matrix, row errors, Gram action.

Python hands over arrays it has checked; nothing here checks again. Every function that does
work releases the GIL and runs on the calling thread.
"""

from cpython.buffer cimport (
    Py_buffer, PyBUF_FORMAT, PyBUF_STRIDED, PyBUF_STRIDED_RO, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.math cimport isfinite
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memmove, memset

import os

from fastdr._threads cimport Work

cdef extern from "tile.h" nogil:
    int FD_F8, FD_F4, FD_F2, FD_I1, FD_U1, FD_I2, FD_U2, FD_I4, FD_U4, FD_I8, FD_U8
    Py_ssize_t FD_PANEL, FD_WIDE_PANEL, FD_WIDE_COLS
    enum: FD_TOGETHER
    enum: FD_TURNED
    enum: FD_TURNED_FEW
    void FD_PREFETCH_NEAR(const void *address)

    ctypedef struct fd_matrix:
        const char *data
        ptrdiff_t rows, cols, row_step, col_step
        int dtype

    ctypedef struct fd_affine:
        const double *col_shift
        const double *row_shift
        const double *row_factor

    ptrdiff_t fd_triangle_offset(ptrdiff_t strip, ptrdiff_t strips, ptrdiff_t width)

    ctypedef struct fd_panels:
        const void *packed
        ptrdiff_t rows, each, apart

    ctypedef struct fd_kernels:
        ptrdiff_t width, gram_width, panel_rows, wide_rows
        ptrdiff_t panel_bytes(ptrdiff_t) noexcept nogil
        void pack(const fd_matrix *, ptrdiff_t, ptrdiff_t, const fd_affine *, void *, double *,
                  double *) noexcept nogil
        void (*recentre)(void *, ptrdiff_t, ptrdiff_t, const double *,
                         const double *) noexcept nogil
        int (*square)(const fd_matrix *, ptrdiff_t, ptrdiff_t, const double *, void *, double *,
                      double *, double *) noexcept nogil
        void unfold(const double *, ptrdiff_t, double *) noexcept nogil
        void multiply(const fd_panels *, ptrdiff_t, ptrdiff_t, ptrdiff_t, ptrdiff_t, ptrdiff_t,
                      double *, const char *, ptrdiff_t) noexcept nogil
        int rows_product(const fd_matrix *, ptrdiff_t, ptrdiff_t, const double *, const void *,
                         ptrdiff_t, const double *, void *, void *) noexcept nogil
        void row_errors(const fd_matrix *, ptrdiff_t, ptrdiff_t, const double *, const void *,
                        const void *, ptrdiff_t, double *, void *) noexcept nogil
        ptrdiff_t rows_work(ptrdiff_t, ptrdiff_t) noexcept nogil
        ptrdiff_t errors_work(ptrdiff_t, ptrdiff_t) noexcept nogil
        void gram_stack(const fd_matrix *, void *) noexcept nogil
        void gram_apply(const fd_matrix *, ptrdiff_t, ptrdiff_t, const double *, const double *,
                        const void *, void *, ptrdiff_t, double *, void *) noexcept nogil
        ptrdiff_t gram_work(ptrdiff_t) noexcept nogil
        void gram_offset(const double *, ptrdiff_t, const void *, ptrdiff_t,
                         double *) noexcept nogil
        void gram_add(const void *, ptrdiff_t, ptrdiff_t, const double *, const double *, int,
                      char *, ptrdiff_t) noexcept nogil
        void symmetric_apply(const fd_matrix *, ptrdiff_t, ptrdiff_t, const void *, void *,
                             void *) noexcept nogil
        ptrdiff_t symmetric_work() noexcept nogil
        double peak(ptrdiff_t) noexcept nogil

    ctypedef struct fd_tile:
        const char *name
        fd_kernels f8, f4, i2
        void column_sums(const fd_matrix *, ptrdiff_t, ptrdiff_t, const double *, const double *,
                         double *, double *) noexcept nogil
        void add_rank_one(double *, ptrdiff_t, ptrdiff_t, const double *, double) noexcept nogil
        double read_words(const uint64_t *, ptrdiff_t) noexcept nogil

    int fd_tiles(const fd_tile **found)

cdef extern from "tickets.h" nogil:
    int64_t fd_take(int64_t *)
    void fd_report(int64_t *)
    void fd_await(int64_t *, int64_t)

cdef extern from "scratch.h" nogil:
    Py_ssize_t FD_PAGE
    void *fd_take_block(size_t)
    void fd_return_block(void *, size_t)

cdef enum:
    STEP_PANELS = FD_TOGETHER
    MOST_GROUPS = 16
    APART = 1 << 16
    NARROWED = 256  # elements that are made float32 at a time
    EXPANDED_ROWS = 16  # rows of a triangle that a thread takes
    MIRRORED_ROWS = 64  # the same of the full matrix: whole blocks

GROUPS = MOST_GROUPS
LARGE_PAGE = FD_PAGE  # bytes
PANEL = 2 * FD_PANEL  # rows of whole panels in any arithmetic
LEAST_PANEL = FD_WIDE_PANEL  # rows that are summed before they join a total
SHARED_FEATURES = FD_WIDE_COLS
EXPANDED = EXPANDED_ROWS


cdef const fd_tile *tiles[3]
cdef int tile_count = fd_tiles(tiles)
cdef const fd_tile *tile


def available_isas():
    """Names of the instruction sets this machine can run, slowest first."""
    return [tiles[i].name.decode() for i in range(tile_count)]


def isa():
    """Name of the instruction set in use."""
    return tile.name.decode()


def _choose(name):
    """Use the best instruction set, or the one named by FASTDR_ISA."""
    global tile
    names = available_isas()
    if name and name not in names:
        raise ImportError(f"FASTDR_ISA={name!r} cannot run here; allowed are {', '.join(names)}.")
    tile = tiles[names.index(name) if name else tile_count - 1]


_choose(os.environ.get("FASTDR_ISA", ""))

cdef dict CODES = {
    ("f", 8): FD_F8, ("f", 4): FD_F4, ("f", 2): FD_F2, ("i", 1): FD_I1, ("u", 1): FD_U1,
    ("i", 2): FD_I2, ("u", 2): FD_U2, ("i", 4): FD_I4, ("u", 4): FD_U4, ("i", 8): FD_I8,
    ("u", 8): FD_U8, ("b", 1): FD_U1,
}


cdef class Matrix:
    """A strided two-dimensional buffer of a supported native dtype; keeps its owner alive."""

    cdef Py_buffer buffer
    cdef fd_matrix x
    cdef bint held

    def __init__(self, array, bint transposed=False, bint writable=False):
        code = CODES[array.dtype.kind, array.dtype.itemsize]
        PyObject_GetBuffer(array, &self.buffer,
                           (PyBUF_STRIDED if writable else PyBUF_STRIDED_RO) | PyBUF_FORMAT)
        self.held = True
        self.x = fd_matrix(<const char *>self.buffer.buf, self.buffer.shape[transposed],
                           self.buffer.shape[not transposed], self.buffer.strides[transposed],
                           self.buffer.strides[not transposed], code)

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef class Memory:
    """Scratch bytes, aligned to a cache line."""

    cdef void *raw
    cdef void *data
    cdef size_t size  # of whole pages, 0 if there are none

    def __cinit__(self, Py_ssize_t size):
        if size >= FD_PAGE // 32:
            self.size = (size + FD_PAGE - 1) // FD_PAGE * FD_PAGE
            self.raw = self.data = fd_take_block(self.size)
        else:
            self.raw = malloc(size + 64)
            self.data = <void *>((<uintptr_t>self.raw + 63) & ~<uintptr_t>63)
        if self.raw == NULL:
            raise MemoryError(f"cannot allocate {size} bytes of scratch memory")

    def __dealloc__(self):
        if self.size:
            fd_return_block(self.raw, self.size)
        else:
            free(self.raw)


cdef inline const fd_kernels *kernels(Py_ssize_t itemsize) noexcept nogil:
    return &tile.f8 if itemsize == 8 else &tile.f4 if itemsize == 4 else &tile.i2


cdef inline const fd_kernels *kernels_of(Matrix matrix) noexcept nogil:
    return kernels(4 if matrix.x.dtype == FD_F4 else 8)


cdef inline Py_ssize_t row_bytes(const fd_matrix *x) noexcept nogil:
    """Bytes of a row if rows follow each other without gaps, else 0."""
    return x.row_step if x.col_step > 0 and x.row_step == x.cols * x.col_step else 0


cdef inline const double *optional(const double[::1] view) noexcept nogil:
    return NULL if view is None or view.shape[0] == 0 else &view[0]


cdef inline Py_ssize_t apart(Py_ssize_t size) noexcept nogil:
    """Bytes from the memory of one thread to that of the next.

    Processors fetch ahead what strides reach, and would fetch strips beyond the last from what
    another thread is writing: 30 % of its speed, by measurement.
    """
    return (size + APART - 1) // APART * APART + APART


cdef class Chunks(Work):
    """What lies in [first, last), `step` at a time by as many threads as come.

    In `streams` parts of it at once, if threads are to keep away from each other.
    """

    cdef Py_ssize_t first, last, step, each, streams
    cdef Memory memory
    cdef int64_t next, threads

    cdef void divide(self, Py_ssize_t first, Py_ssize_t last, Py_ssize_t step,
                     Py_ssize_t threads=0, Py_ssize_t each=0, Py_ssize_t streams=1):
        """Begin; each of `threads` has `each` bytes of memory."""
        self.first, self.last, self.step, self.streams = first, last, step, streams
        self.each = apart(each) if threads > 1 else each
        self.memory = Memory(threads * self.each)
        self.next = self.threads = 0

    cdef void take_part(self) noexcept nogil:
        cdef char *mine = <char *>self.memory.data + fd_take(&self.threads) * self.each
        cdef Py_ssize_t whole = self.streams * self.step
        cdef Py_ssize_t length = (self.last - self.first + whole - 1) // whole  # of a stream
        cdef Py_ssize_t ticket = fd_take(&self.next), first
        while ticket < self.streams * length:
            first = self.first + self.step * (ticket % self.streams * length +
                                              ticket // self.streams)
            if first < self.last:
                self.chunk(first, min(first + self.step, self.last), mine)
            ticket = fd_take(&self.next)

    cdef void chunk(self, Py_ssize_t first, Py_ssize_t last, void *mine) noexcept nogil:
        pass


cdef struct Panel:
    # Packed rows, with their weight, column sums and squares.
    void *packed
    double *sums
    double *squares
    Py_ssize_t rows
    double weight
    bint apart    # moved to their own mean, which is sums / weight
    bint outside  # their products leave the range of float32


cdef class Scatter:
    """Running scatter of rows about their mean, gathered about a fixed shift.

    Panels whose mean lies within a standard deviation of the shift are summed about the shift
    (the ``near`` set) and corrected once; a panel further away is moved to its own mean first
    and joins the ``far`` set by Chan, Golub and LeVeque's (1983) update. Either way no digit is
    lost to the distance of the data from zero.

    Parameters: number of features; zeroed `storage` of `storage_size(features, itemsize)` float64
    (of `triangle_size` if it will only be merged into another, None to leave that to
    ScatterGroups); `shift` (features,) or empty;
    `itemsize` of the arithmetic within a panel: 8 for float64, 4 for float32, 2 for int16 pairs
    summed in int32 (8-bit integers about an integral shift among them, unweighted: exact);
    `fixed` to keep panels where they are.
    With `row_shift` (one entry for every row to come) rows are shifted by it as a whole: on a
    transposed view that centres the features and makes the scatter a Gram matrix.
    """

    cdef const fd_kernels *kernel
    cdef readonly Py_ssize_t features
    cdef Py_ssize_t strips, padded
    cdef readonly Py_ssize_t itemsize
    cdef bint fixed
    cdef double[::1] storage
    cdef double *triangle
    cdef double *near
    cdef double *far
    cdef double *step
    cdef double[FD_TURNED] turned  # products of few columns, in no place of the triangle yet
    cdef Memory vectors
    cdef const double[::1] shift
    cdef const double[::1] row_shift
    cdef double near_weight, far_weight
    cdef bint centred
    cdef readonly bint outside

    def __init__(self, Py_ssize_t features, double[::1] storage, const double[::1] shift,
                 Py_ssize_t itemsize, bint fixed, const double[::1] row_shift=None):
        cdef Py_ssize_t i
        self.kernel = kernels(itemsize)
        self.features, self.itemsize = features, itemsize
        self.fixed = fixed or self.kernel.recentre == NULL
        self.strips = (features + self.kernel.width - 1) // self.kernel.width
        self.padded = self.strips * self.kernel.width
        self.storage, self.shift, self.row_shift = storage, shift, row_shift
        if storage is not None:
            self.triangle = &storage[storage.shape[0] - packed_size(features, self.kernel.width)]
        self.vectors = Memory(3 * self.padded * 8)
        self.near = <double *>self.vectors.data
        self.far, self.step = self.near + self.padded, self.near + 2 * self.padded
        for i in range(3 * self.padded):
            self.near[i] = 0

    cdef Py_ssize_t panel_bytes(self) noexcept nogil:
        """Bytes that `place_panel` wants."""
        return (self.kernel.panel_bytes(self.features) + 2 * self.padded * 8 + 63) // 64 * 64

    cdef Panel place_panel(self, void *at) noexcept nogil:
        cdef Panel panel = Panel(NULL, NULL, NULL, 0, 0, False, False)
        panel.sums = <double *>at
        panel.squares = panel.sums + self.padded
        panel.packed = panel.squares + self.padded
        return panel

    cdef bint pack_panel(self, const fd_matrix *x, Py_ssize_t first, Py_ssize_t last,
                         const double *weight, const double *root, Panel *panel) noexcept nogil:
        """Pack one panel; tell whether all its values are finite."""
        cdef fd_affine affine
        cdef Py_ssize_t i
        cdef bint finite
        affine.col_shift, affine.row_factor = optional(self.shift), root
        affine.row_shift = optional(self.row_shift)
        self.kernel.pack(x, first, last, &affine, panel.packed, panel.sums, panel.squares)
        finite = self.judge(panel, first, last, weight)
        if panel.apart:
            for i in range(self.padded):
                panel.sums[i] /= panel.weight
            self.kernel.recentre(panel.packed, panel.rows, self.features, panel.sums,
                                 NULL if root == NULL else root + first)
        return finite

    cdef bint judge(self, Panel *panel, Py_ssize_t first, Py_ssize_t last,
                    const double *weight) noexcept nogil:
        """Decide by the sums of a panel where it belongs; tell whether its values are finite."""
        cdef Py_ssize_t i
        cdef double total = 0
        panel.rows, panel.weight = last - first, last - first
        panel.apart = panel.outside = False
        if weight != NULL:
            panel.weight = 0
            for i in range(first, last):
                panel.weight += weight[i]
        for i in range(self.features):
            total += panel.squares[i] + panel.sums[i]
            panel.apart |= panel.sums[i] * panel.sums[i] > 0.5 * panel.weight * panel.squares[i]
            panel.outside |= panel.squares[i] > 1e36 or 0 < panel.squares[i] < 1e-28
        panel.outside &= self.itemsize == 4
        panel.apart &= panel.weight > 0 and not self.fixed
        return isfinite(total)

    cdef void settle(self, const Panel *panel) noexcept nogil:
        """Book a panel's weight and mean with the near or the far set."""
        cdef Py_ssize_t i
        cdef double weight = self.far_weight + panel.weight
        self.outside |= panel.outside
        if not panel.apart:
            self.near_weight += panel.weight
            for i in range(self.padded):
                self.near[i] += panel.sums[i]
            return
        for i in range(self.padded):
            self.step[i] = panel.sums[i] - self.far[i]
            self.far[i] += self.step[i] * (panel.weight / weight)
        if self.far_weight > 0:
            tile.add_rank_one(self.triangle, self.features, self.kernel.width, self.step,
                              self.far_weight * panel.weight / weight)
        self.far_weight = weight

    def add_rows(self, Matrix rows, Py_ssize_t first, Py_ssize_t last,
                 const double[::1] weight=None, const double[::1] root=None):
        """Add rows [first, last); tell whether every value is finite."""
        cdef Memory memory = Memory(self.panel_bytes())
        cdef bint finite
        with nogil:
            finite = self.add_panels(&rows.x, first, last, optional(weight), optional(root),
                                     memory.data)
        return finite

    cdef bint add_panels(self, const fd_matrix *x, Py_ssize_t first, Py_ssize_t last,
                         const double *weight, const double *root, void *memory) noexcept nogil:
        """Do the work of `add_rows` in `panel_bytes` of memory."""
        cdef Panel panel = self.place_panel(memory)
        cdef fd_panels panels = fd_panels(NULL, 0, self.kernel.panel_rows, 0)
        cdef Py_ssize_t start = first, stop
        cdef bint finite = True
        cdef bint few = (self.kernel.square != NULL and self.features <= 2 * self.kernel.width
                         and root == NULL and self.row_shift is None)
        while start < last:
            stop = min(start + self.kernel.panel_rows, last)
            if not few or not self.add_square(x, start, stop, &panel, &finite):
                finite &= self.pack_panel(x, start, stop, weight, root, &panel)
                self.settle(&panel)
                panels.packed, panels.rows = panel.packed, panel.rows
                self.kernel.multiply(&panels, self.features, 0, self.strips, 0, self.strips,
                                     self.triangle, x.data + stop * x.row_step,
                                     min(self.kernel.panel_rows, last - stop) * row_bytes(x))
            start = stop
        return finite

    cdef bint add_square(self, const fd_matrix *x, Py_ssize_t first, Py_ssize_t last,
                         Panel *panel, bint *finite) noexcept nogil:
        """Add a panel of few columns as it is read; tell whether: not if it lies apart."""
        cdef double[FD_TURNED] products
        cdef Py_ssize_t i
        cdef bint sound
        if not self.kernel.square(x, first, last, optional(self.shift), panel.packed, panel.sums,
                                  panel.squares, products):
            return False
        sound = self.judge(panel, first, last, NULL)
        if panel.apart:
            return False
        finite[0] &= sound
        self.settle(panel)
        for i in range(FD_TURNED if self.strips > 1 else FD_TURNED_FEW):
            self.turned[i] += products[i]
        return True

    cdef void unfold(self) noexcept nogil:
        """Put what products of few columns there are into the triangle."""
        if self.kernel.unfold != NULL and self.features <= 2 * self.kernel.width:
            self.kernel.unfold(self.turned, self.features, self.triangle)
            memset(self.turned, 0, sizeof(self.turned))

    def merge(self, Scatter other):
        """Add another scatter about the same shift (Chan, Golub and LeVeque 1983)."""
        cdef Py_ssize_t i, size = packed_size(self.features, self.kernel.width)
        cdef double weight = self.far_weight + other.far_weight
        self.outside |= other.outside
        with nogil:
            for i in range(FD_TURNED):
                self.turned[i] += other.turned[i]
            for i in range(size):
                self.triangle[i] += other.triangle[i]
            self.near_weight += other.near_weight
            for i in range(self.padded):
                self.near[i] += other.near[i]
            if other.far_weight > 0:
                for i in range(self.padded):
                    self.step[i] = other.far[i] - self.far[i]
                    self.far[i] += self.step[i] * (other.far_weight / weight)
                tile.add_rank_one(self.triangle, self.features, self.kernel.width, self.step,
                                  self.far_weight * other.far_weight / weight)
                self.far_weight = weight

    def centre(self, double[::1] offset):
        """Put mean - shift into `offset`; what is left to subtract, `expand` subtracts.

        The sets are left as they are not needed any more: call it once, then `expand`.
        """
        cdef Py_ssize_t i
        cdef double weight = self.near_weight + self.far_weight
        if self.near_weight > 0:
            for i in range(self.padded):
                self.near[i] /= self.near_weight
        for i in range(self.padded):
            self.step[i] = self.far[i] - self.near[i]
        for i in range(self.features):
            offset[i] = self.near[i] + self.step[i] * (self.far_weight / weight)
        self.centred = True

    def movable(self, Py_ssize_t first, Py_ssize_t itemsize):
        """Row before which rows may move in any order, those before `first` having left.

        All end where no row from `first` on begins; one row may always move. Bytes of an element
        where they move to: 8, or 4 if they are narrowed.
        """
        cdef Py_ssize_t start, room
        start = self.storage.shape[0] - packed_size(self.features, self.kernel.width)
        room = (start + self.row_offset(first)) * 8 // itemsize
        return max(first + 1, min(self.features, room // self.features))

    cdef Py_ssize_t row_offset(self, Py_ssize_t i) noexcept nogil:
        """Where row i of the triangle begins, with its diagonal."""
        cdef Py_ssize_t width = self.kernel.width, s = i // width
        return (fd_triangle_offset(s, self.strips, width)
                + (i - s * width) * ((self.strips - s) * width + 1))

    cdef void subtract(self, Py_ssize_t i, Py_ssize_t first, Py_ssize_t last, const double *row,
                       double *out) noexcept nogil:
        """Put columns [first, last) of row i, which stand in `row`, into `out`, centred."""
        cdef Py_ssize_t j, count = last - first
        cdef double a, b, weight = self.near_weight + self.far_weight
        cdef const double *near = self.near + first
        cdef const double *step = self.step + first
        if not self.centred or not self.near_weight > 0:
            memmove(out, row, count * 8)
            return
        a = -self.near_weight * self.near[i]
        b = self.near_weight * self.far_weight / weight * self.step[i]
        for j in range(count):
            out[j] = row[j] + a * near[j]
        if b != 0:
            for j in range(count):
                out[j] += b * step[j]

    cdef void expand(self, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
        """Move rows [first, last) to their places in a full matrix, and centre them."""
        cdef Py_ssize_t d = self.features, i
        cdef double *row
        for i in range(first, last):
            row = &self.storage[i * d + i]
            memmove(row, self.triangle + self.row_offset(i), (d - i) * 8)
            self.subtract(i, i, d, row, row)

    cdef void narrow(self, Py_ssize_t first, Py_ssize_t last, double divisor) noexcept nogil:
        """The same to a full matrix of float32, over `divisor`."""
        cdef Py_ssize_t d = self.features, i, j, start, stop
        cdef double *row
        cdef float *to = <float *>&self.storage[0]
        cdef double[NARROWED] part  # a row may move onto itself
        for i in range(first, last):
            row = self.triangle + self.row_offset(i) - i
            start = i
            while start < d:
                stop = min(start + NARROWED, d)
                self.subtract(i, start, stop, row + start, part)
                for j in range(start, stop):
                    to[i * d + j] = <float>(part[j - start] / divisor)
                start = stop


ctypedef fused real:
    double
    float


cdef void mirror(real *out, Py_ssize_t d, Py_ssize_t first, Py_ssize_t last) noexcept nogil:
    """Copy the upper half to rows [first, last) of the lower half, a square block a time.

    The next block is called meanwhile: no processor foresees lines that are rows apart.
    """
    cdef Py_ssize_t i, j, ib, jb, line, lines = 32 * sizeof(real) // 64 + 1
    for jb in range(first, last, 32):
        for ib in range(0, jb + 1, 32):
            for j in range(jb, min(jb + 32, last)):
                if ib + 32 <= jb:
                    for line in range(lines):
                        FD_PREFETCH_NEAR(<char *>(out + (ib + 32 + j - jb) * d + jb) + 64 * line)
                        FD_PREFETCH_NEAR(<char *>(out + j * d + ib + 32) + 64 * line)
                for i in range(ib, min(ib + 32, j)):
                    out[j * d + i] = out[i * d + j]
    for i in range(first, last):
        out[i * d + i] = max(out[i * d + i], <real>0)


cdef class Expansion(Chunks):
    """Makes rows [first, last) of a Scatter's triangle those of a full matrix, then `mirrored`.

    With a `divisor` the matrix is of float32, in the same storage, and divided by it.
    """

    cdef Scatter scatter
    cdef bint mirrored
    cdef double divisor

    def __init__(self, Scatter scatter, Py_ssize_t first, Py_ssize_t last, bint mirrored=False,
                 double divisor=0):
        self.scatter, self.mirrored, self.divisor = scatter, mirrored, divisor
        scatter.unfold()
        self.divide(first, last, MIRRORED_ROWS if mirrored else EXPANDED_ROWS)

    cdef void chunk(self, Py_ssize_t first, Py_ssize_t last, void *mine) noexcept nogil:
        cdef double *whole = &self.scatter.storage[0]
        if self.mirrored and self.divisor:
            mirror(<float *>whole, self.scatter.features, first, last)
        elif self.mirrored:
            mirror(whole, self.scatter.features, first, last)
        elif self.divisor:
            self.scatter.narrow(first, last, self.divisor)
        else:
            self.scatter.expand(first, last)


ctypedef bint (*adding)(void *, const fd_matrix *, Py_ssize_t, Py_ssize_t, const double *,
                        const double *, void *) noexcept nogil


cdef bint add_panels(Scatter scatter, const fd_matrix *x, Py_ssize_t first, Py_ssize_t last,
                     const double *weight, const double *root, void *memory) noexcept nogil:
    return scatter.add_panels(x, first, last, weight, root, memory)


cdef class ScatterGroups(Chunks):
    """Adds rows [edges[i], edges[i + 1]) to a Scatter each, the first to `total`; then `merge`.

    `others` have no storage yet. `finite` tells afterwards whether all values are.
    """

    cdef Scatter total
    cdef list others
    cdef Matrix rows
    cdef const Py_ssize_t[::1] edges
    cdef const double[::1] weight
    cdef const double[::1] root
    cdef (void *)[MOST_GROUPS] scatters
    cdef Memory triangles
    cdef Py_ssize_t size
    cdef readonly bint finite

    def __init__(self, Scatter total, list others, Matrix rows, const Py_ssize_t[::1] edges,
                 const double[::1] weight, const double[::1] root, Py_ssize_t threads):
        cdef Scatter scatter
        cdef Py_ssize_t i
        self.total, self.others, self.rows, self.edges = total, others, rows, edges
        self.weight, self.root, self.finite = weight, root, True
        self.size = (packed_size(total.features, total.kernel.width) * 8 + 63) // 64 * 64
        self.triangles = Memory(len(others) * self.size)
        self.scatters[0] = <void *>total
        for i, scatter in enumerate(others):
            scatter.triangle = <double *>(<char *>self.triangles.data + i * self.size)
            self.scatters[i + 1] = <void *>scatter
        self.divide(0, len(others) + 1, 1, threads, total.panel_bytes())

    def merge(self):
        """Add all to the first, in order."""
        for scatter in self.others:
            self.total.merge(scatter)

    cdef void chunk(self, Py_ssize_t first, Py_ssize_t last, void *mine) noexcept nogil:
        if first > 0:
            memset(<char *>self.triangles.data + (first - 1) * self.size, 0, self.size)
        if not (<adding>add_panels)(self.scatters[first], &self.rows.x, self.edges[first],
                                    self.edges[last], optional(self.weight),
                                    optional(self.root), mine):
            self.finite = False


cdef class SharedScatter(Work):
    """Adds rows to one Scatter, by as many threads as come.

    They take one task after another. In phase s the panels of step s are packed, those of step
    s - 1 are settled, then each part of the triangle gets their products. Packing only waits for
    the last phase but one, so that nobody waits where one phase ends and the next begins.

    Parameters: the Scatter; parts of its triangle (n, 4): row strips [j0, j1), column strips
    [i0, i1). A step is step_rows(itemsize) rows.
    """

    cdef Scatter total
    cdef Py_ssize_t each, steps, apart
    cdef const Py_ssize_t[:, ::1] parts
    cdef Memory memory, counts
    cdef Panel[3 * STEP_PANELS] panels
    # What is being added.
    cdef Matrix rows
    cdef Py_ssize_t first, last
    cdef readonly bint finite
    cdef const double[::1] weight
    cdef const double[::1] root
    cdef int64_t next, settled
    cdef int64_t *done

    def __init__(self, Scatter total, const Py_ssize_t[:, ::1] parts):
        cdef Py_ssize_t i
        self.total, self.parts = total, parts
        self.each = STEP_PANELS + 1 + parts.shape[0]
        self.apart = apart(total.panel_bytes())
        self.memory = Memory(3 * STEP_PANELS * self.apart)
        for i in range(3 * STEP_PANELS):
            self.panels[i] = total.place_panel(<char *>self.memory.data + i * self.apart)

    def begin(self, Matrix rows, Py_ssize_t first, Py_ssize_t last, const double[::1] weight=None,
              const double[::1] root=None):
        """Prepare to add rows [first, last); then let `work` be called."""
        cdef Py_ssize_t step = step_rows(self.total.itemsize)
        self.rows, self.first, self.last = rows, first, last
        self.weight, self.root = weight, root
        self.steps = (last - first + step - 1) // step
        self.counts = Memory((self.steps + 1) * sizeof(int64_t))
        self.done = <int64_t *>self.counts.data
        memset(self.done, 0, (self.steps + 1) * sizeof(int64_t))
        self.next = self.settled = 0
        self.finite = True

    cdef void take_part(self) noexcept nogil:
        cdef int64_t ticket
        cdef Py_ssize_t phase, task
        while True:
            ticket = fd_take(&self.next)
            phase = ticket // self.each
            task = ticket - phase * self.each
            if phase > self.steps:
                return
            if task < STEP_PANELS:
                if phase >= 2:
                    fd_await(&self.done[phase - 2], self.each)
                self.pack(phase, task)
            elif task == STEP_PANELS:
                if phase >= 1:
                    fd_await(&self.done[phase - 1], self.each)
                    self.settle(phase - 1)
                fd_report(&self.settled)
            elif phase >= 1:
                fd_await(&self.settled, phase + 1)
                self.multiply(phase - 1, task - STEP_PANELS - 1)
            fd_report(&self.done[phase])

    cdef Py_ssize_t row(self, Py_ssize_t step, Py_ssize_t panel) noexcept nogil:
        """First row of a panel, or the end."""
        return min(self.first + (step * STEP_PANELS + panel)
                   * self.total.kernel.wide_rows, self.last)

    cdef Panel *panel(self, Py_ssize_t step, Py_ssize_t index) noexcept nogil:
        return &self.panels[step % 3 * STEP_PANELS + index]

    cdef void pack(self, Py_ssize_t step, Py_ssize_t index) noexcept nogil:
        cdef Py_ssize_t start = self.row(step, index), stop = self.row(step, index + 1)
        cdef Panel *panel = self.panel(step, index)
        panel.rows = 0
        if start < stop and not self.total.pack_panel(
                &self.rows.x, start, stop, optional(self.weight), optional(self.root), panel):
            self.finite = False

    cdef void settle(self, Py_ssize_t step) noexcept nogil:
        cdef Py_ssize_t index
        for index in range(STEP_PANELS):
            if self.panel(step, index).rows:
                self.total.settle(self.panel(step, index))

    cdef void multiply(self, Py_ssize_t step, Py_ssize_t part) noexcept nogil:
        """Add to one part; meanwhile call its share of the rows that are packed next."""
        cdef Py_ssize_t start = self.row(step + 2, 0), shares = self.parts.shape[0]
        cdef const fd_matrix *x = &self.rows.x
        cdef Py_ssize_t calls = (self.row(step + 3, 0) - start) * row_bytes(x)
        cdef Py_ssize_t share = calls * part // shares
        cdef fd_panels panels = fd_panels(
            self.panel(step, 0).packed, self.row(step + 1, 0) - self.row(step, 0),
            self.total.kernel.wide_rows, self.apart)
        self.total.kernel.multiply(
            &panels, self.total.features, self.parts[part, 0], self.parts[part, 1],
            self.parts[part, 2], self.parts[part, 3], self.total.triangle,
            x.data + start * x.row_step + share, calls * (part + 1) // shares - share)


cdef Py_ssize_t packed_size(Py_ssize_t features, Py_ssize_t width) noexcept:
    """Float64 elements of a packed triangle."""
    cdef Py_ssize_t strips = (features + width - 1) // width
    return fd_triangle_offset(strips, strips, width)


def triangle_size(Py_ssize_t features, Py_ssize_t itemsize):
    """Float64 elements of a packed triangle, the least storage of a Scatter to be merged."""
    return packed_size(features, kernels(itemsize).width)


def storage_size(Py_ssize_t features, Py_ssize_t itemsize):
    """Float64 elements that hold a packed triangle and, unpacked in place, the full matrix.

    The triangle lies at the end; row i moves forward from its packed place to i * features + i,
    so every packed row must start no earlier than that.
    """
    cdef Py_ssize_t width = kernels(itemsize).width, s, i, before = 0
    cdef Py_ssize_t strips = (features + width - 1) // width
    for i in range(features):
        s = i // width
        before = max(before, i * (features + 1) - fd_triangle_offset(s, strips, width)
                     - (i - s * width) * ((strips - s) * width + 1))
    return max(features * features, before + packed_size(features, width))


def centre_classes(const double[:, ::1] rows, const Py_ssize_t[::1] codes,
                   const double[:, ::1] centres, const double[::1] weight, double[:, ::1] sums,
                   double[:, ::1] out):
    """out[i] = rows[i] - centres[codes[i]], then sums[codes[i]] += weight[i] out[i].

    rows and out (m, d), which may be one array; codes (m,), centres and sums (classes, d);
    weight (m,), or None for ones.
    """
    cdef Py_ssize_t i, j, d = rows.shape[1]
    cdef double w = 1
    cdef const double *w_all = optional(weight)
    cdef const double *row
    cdef const double *centre
    cdef double *total
    cdef double *to
    if d == 0:
        return
    with nogil:
        for i in range(rows.shape[0]):
            row, centre = &rows[i, 0], &centres[codes[i], 0]
            total, to = &sums[codes[i], 0], &out[i, 0]
            if w_all != NULL:
                w = w_all[i]
            for j in range(d):
                to[j] = row[j] - centre[j]
            for j in range(d):
                total[j] += w * to[j]


def add_column_sums(Matrix rows, Py_ssize_t first, Py_ssize_t last, const double[::1] shift,
                    const double[::1] root, double[::1] sums, double[::1] squares):
    """sums += Σ root² (x - shift), squares += Σ root² (x - shift)² by column, in float64.

    shift, sums, squares (features,); root (rows,), the square roots of weights, or None.
    """
    with nogil:
        tile.column_sums(&rows.x, first, last, &shift[0], optional(root), &sums[0], &squares[0])


def step_rows(Py_ssize_t itemsize):
    """Rows of a step of SharedScatter."""
    return STEP_PANELS * kernels(itemsize).wide_rows


def strip_width(Py_ssize_t itemsize):
    """Columns of a packed strip."""
    return kernels(itemsize).width


cdef class RowChunks(Chunks):
    """Chunks of rows, each of which a kernel takes."""

    cdef const fd_kernels *kernel
    cdef Matrix rows


cdef class Products(RowChunks):
    """Puts (rows - shift) factor + offset into out; `finite` tells whether all results are.

    rows (n, p), shift (p,) or empty, factor (p, q) and out (n, q) row-major in the working
    dtype, offset (q,) or empty.
    """

    cdef Matrix factor, out
    cdef const double[::1] shift
    cdef const double[::1] offset
    cdef readonly bint finite

    def __init__(self, Matrix rows, Py_ssize_t first, Py_ssize_t last, Py_ssize_t step,
                 Py_ssize_t threads, const double[::1] shift, Matrix factor,
                 const double[::1] offset, Matrix out):
        self.kernel = kernels_of(out)
        self.shift, self.factor, self.offset, self.out = shift, factor, offset, out
        self.finite = True
        self.rows = rows
        # Threads that write side by side meet in pages of `out` that are not there yet.
        self.divide(first, last, step, threads,
                    self.kernel.rows_work(rows.x.cols, factor.x.cols), streams=threads)

    cdef void chunk(self, Py_ssize_t first, Py_ssize_t last, void *mine) noexcept nogil:
        if not self.kernel.rows_product(&self.rows.x, first, last, optional(self.shift),
                                        self.factor.x.data, self.factor.x.cols,
                                        optional(self.offset), <void *>self.out.x.data, mine):
            self.finite = False


cdef class RowErrors(RowChunks):
    """Puts |a - (a forward) backward|² into out[first:last], a = row - shift; NaN if it vanished.

    rows (n, p), forward (p, k), backward (k, p) row-major in the working dtype.
    """

    cdef Matrix forward, backward
    cdef const double[::1] shift
    cdef double[::1] out

    def __init__(self, Matrix rows, Py_ssize_t first, Py_ssize_t last, Py_ssize_t step,
                 Py_ssize_t threads, const double[::1] shift, Matrix forward, Matrix backward,
                 double[::1] out):
        self.kernel = kernels_of(forward)
        self.shift, self.forward, self.backward, self.out = shift, forward, backward, out
        self.rows = rows
        self.divide(first, last, step, threads,
                    self.kernel.errors_work(rows.x.cols, forward.x.cols))

    cdef void chunk(self, Py_ssize_t first, Py_ssize_t last, void *mine) noexcept nogil:
        self.kernel.row_errors(&self.rows.x, first, last, optional(self.shift),
                               self.forward.x.data, self.backward.x.data, self.forward.x.cols,
                               &self.out[first], mine)


cdef class Action(RowChunks):
    """Puts what chunks give of the product of a matrix with V into out: their sum, in their order.

    V and out (p, q) in the working dtype, their rows without gaps.
    """

    cdef Matrix out
    cdef Py_ssize_t strips, strip, size, wide  # bytes of one, of all, of a row in float64
    cdef Memory factor
    cdef int64_t added

    cdef void prepare(self, Matrix rows, Matrix V, Matrix out):
        self.kernel, self.rows, self.out, self.added = kernels_of(V), rows, out, 0
        self.strips = (V.x.cols + self.kernel.gram_width - 1) // self.kernel.gram_width
        self.strip = (V.x.rows + V.x.rows % 2) * 64
        self.size = self.strips * self.strip
        self.wide = self.strips * self.kernel.gram_width * sizeof(double)
        self.factor = Memory(self.size)
        self.kernel.gram_stack(&V.x, self.factor.data)

    cdef void add(self, Py_ssize_t index, void *given, const double *shift,
                  const double *sums) noexcept nogil:
        """Add what chunk `index` gave, as soon as those before it are added."""
        fd_await(&self.added, index)
        self.kernel.gram_add(given, self.out.x.rows, self.out.x.cols, shift, sums, index == 0,
                             <char *>self.out.x.data, self.out.x.row_step)
        fd_report(&self.added)


cdef class GramSum(Action):
    """Puts A'(A V) into out, A = rows - shift, which may come off `apart` (see tile.h)."""

    cdef const double[::1] shift
    cdef Memory offsets
    cdef const double *offset

    def __init__(self, Matrix rows, Py_ssize_t first, Py_ssize_t last, Py_ssize_t step,
                 Py_ssize_t threads, const double[::1] shift, bint apart, Matrix V, Matrix out):
        self.prepare(rows, V, out)
        self.shift, self.offset = shift, NULL
        self.divide(first, last, step, threads,
                    self.size + self.wide + self.kernel.gram_work(rows.x.cols))
        if apart and optional(shift) != NULL:
            self.offsets = Memory(self.wide)
            memset(self.offsets.data, 0, self.wide)
            self.kernel.gram_offset(optional(shift), rows.x.cols, self.factor.data, self.strips,
                                    <double *>self.offsets.data)
            self.offset = <double *>self.offsets.data

    cdef void chunk(self, Py_ssize_t first, Py_ssize_t last, void *mine) noexcept nogil:
        cdef double *sums = <double *>(<char *>mine + self.size)
        memset(mine, 0, self.size + self.wide)
        self.kernel.gram_apply(&self.rows.x, first, last, optional(self.shift), self.offset,
                               self.factor.data, mine, self.strips, sums,
                               <char *>sums + self.wide)
        self.add((first - self.first) // self.step, mine,
                 NULL if self.offset == NULL else optional(self.shift), sums)


cdef class SymmetricSum(Action):
    """Puts C V into out, read from the rows of the upper triangle of a symmetric C.

    Chunk i is the rows edges[i], edges[i + 1]: even, but for the last.
    """

    cdef const Py_ssize_t[::1] edges

    def __init__(self, Matrix C, const Py_ssize_t[::1] edges, Py_ssize_t threads, Matrix V,
                 Matrix out):
        self.prepare(C, V, out)
        self.edges = edges
        self.divide(0, edges.shape[0] - 1, 1, threads, self.size + self.kernel.symmetric_work())

    cdef void chunk(self, Py_ssize_t first, Py_ssize_t last, void *mine) noexcept nogil:
        cdef Py_ssize_t index, at
        memset(mine, 0, self.size)
        for index in range(self.strips):
            at = index * self.strip
            self.kernel.symmetric_apply(
                &self.rows.x, self.edges[first], self.edges[last], <char *>self.factor.data + at,
                <char *>mine + at, <char *>mine + self.size)
        self.add(first, mine, NULL, NULL)


def gram_width(bint single):
    """Columns of a strip that an Action multiplies."""
    return kernels(4 if single else 8).gram_width


def peak_flops(Py_ssize_t itemsize, Py_ssize_t iterations):
    """Run fused multiply-adds on registers; return how many operations were done."""
    cdef double done
    with nogil:
        done = kernels(4 if itemsize == 4 else 8).peak(iterations)
    return done


def read_bytes(const unsigned char[::1] view, Py_ssize_t start, Py_ssize_t stop):
    """Read bytes [start, stop) of a buffer once; return a checksum."""
    cdef double total
    with nogil:
        total = tile.read_words(<const uint64_t *>&view[start], (stop - start) // 8)
    return total
