"""Networks of linear maps and activations: rows through them, gradients, updates.

All parameters stand in one vector, for each layer its weights (outputs, inputs), row-major, then
its biases; a tied layer has biases only and uses the transposed weights of an earlier one. Python
hands over arrays it has checked; nothing here checks again. Every function that does work
releases the GIL and calls BLAS, which must be held to the calling thread (`single_blas`).
"""

from cython cimport floating
from libc.math cimport isfinite, pow
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset
from scipy.linalg.cython_blas cimport dgemm, sgemm

from fastdr._dense import isa

cdef extern from "network.h" nogil:
    int FN_IDENTITY, FN_RELU, FN_TANH, FN_SIGMOID, FN_GELU, FN_KEEP, FN_SGD, FN_ADAM

    ctypedef struct fn_step:
        double rate, momentum, decay, beta1, beta2, epsilon, unbias1, unbias2

    ctypedef struct fn_kernels:
        void (*activate[5])(void *, const void *, void *, ptrdiff_t, ptrdiff_t) noexcept nogil
        void multiply(void *, const void *, ptrdiff_t) noexcept nogil
        double residual(void *, const void *, double, ptrdiff_t) noexcept nogil
        double squares(const void *, const void *, const double *, ptrdiff_t) noexcept nogil
        void column_sums(const void *, ptrdiff_t, ptrdiff_t, ptrdiff_t, void *) noexcept nogil
        void (*update[3])(void *, const void *, void *, void *, ptrdiff_t, ptrdiff_t, ptrdiff_t,
                          const fn_step *) noexcept nogil
        int standardise_f8(const char *, ptrdiff_t, const double *, const double *, ptrdiff_t,
                           void *) noexcept nogil
        int standardise_f4(const char *, ptrdiff_t, const double *, const double *, ptrdiff_t,
                           void *) noexcept nogil
        void restore_f8(const void *, const double *, const double *, ptrdiff_t,
                        double *) noexcept nogil
        void restore_f4(const void *, const double *, const double *, ptrdiff_t,
                        float *) noexcept nogil

    ctypedef struct fn_family:
        fn_kernels f8, f4

    const fn_family *fn_find(const char *name)

cdef extern from "tickets.h" nogil:
    ctypedef struct fd_tickets:
        int64_t next, done

    int64_t fd_take(int64_t *)
    void fd_report(int64_t *)
    void fd_await(int64_t *, int64_t)


ctypedef fused stored:
    float
    double

# Rows that one task takes through the network: enough for BLAS to be near its best.
cdef enum:
    SLICE = 128
    BLOCK = 1 << 16  # weights whose gradient one task computes, more in layers of 16 such blocks
    MOST_BLOCKS = 16

SLICE_ROWS = SLICE
ACTIVATIONS = {"identity": FN_IDENTITY, "relu": FN_RELU, "tanh": FN_TANH, "sigmoid": FN_SIGMOID,
               "gelu": FN_GELU}
UPDATES = {"keep": FN_KEEP, "sgd": FN_SGD, "adam": FN_ADAM}
cdef const fn_family *family = fn_find(isa().encode())


cdef struct Layer:
    Py_ssize_t inputs, outputs
    Py_ssize_t weight, bias  # where they begin among the parameters
    Py_ssize_t twin          # the later layer that uses these weights transposed, or -1
    bint transposed          # whether the weights are those of an earlier layer
    int activation


cdef struct Block:
    Py_ssize_t layer, first_output, outputs, first_input, inputs


cdef class Network:
    """The shape of a network: layers, where their parameters stand, how gradients are cut."""

    cdef readonly Py_ssize_t depth, size, width, block_count
    cdef Layer *layers
    cdef Block *blocks
    cdef Py_ssize_t block_size
    cdef tuple made_of

    def __cinit__(self, sizes, activations, bint tied):
        cdef Py_ssize_t i, count, step, start
        cdef Layer *layer
        self.made_of = (sizes, activations, tied)
        self.depth = len(activations)
        self.layers = <Layer *>calloc(self.depth, sizeof(Layer))
        self.blocks = <Block *>calloc(self.depth * MOST_BLOCKS, sizeof(Block))
        if self.layers == NULL or self.blocks == NULL:
            raise MemoryError("cannot allocate the description of a network")
        self.width = max(sizes)
        for i in range(self.depth):
            layer = &self.layers[i]
            layer.inputs, layer.outputs = sizes[i], sizes[i + 1]
            layer.activation = ACTIVATIONS[activations[i]]
            layer.twin = self.depth - 1 - i if tied and 2 * i < self.depth else -1
            layer.transposed = tied and 2 * i >= self.depth
            if layer.transposed:
                layer.weight = self.layers[self.depth - 1 - i].weight
            else:
                layer.weight = self.size
                self.size += layer.inputs * layer.outputs
                count = min(MOST_BLOCKS, (layer.inputs * layer.outputs + BLOCK - 1) // BLOCK)
                step = (max(layer.inputs, layer.outputs) + count - 1) // count
                step = (step + 15) // 16 * 16
                if layer.outputs >= layer.inputs:
                    for start in range(0, layer.outputs, step):
                        self._add(i, start, min(step, layer.outputs - start), 0, layer.inputs)
                else:
                    for start in range(0, layer.inputs, step):
                        self._add(i, 0, layer.outputs, start, min(step, layer.inputs - start))
            layer.bias = self.size
            self.size += layer.outputs

    cdef void _add(self, Py_ssize_t layer, Py_ssize_t first_output, Py_ssize_t outputs,
                   Py_ssize_t first_input, Py_ssize_t inputs) noexcept:
        self.blocks[self.block_count] = Block(layer, first_output, outputs, first_input, inputs)
        self.block_count += 1
        self.block_size = max(self.block_size, inputs * outputs)

    def __dealloc__(self):
        free(self.layers)
        free(self.blocks)

    def __reduce__(self):
        return Network, self.made_of

    @property
    def places(self):
        """For each layer the places of its weights and biases, and whether the weights are tied."""
        return [(self.layers[i].weight, self.layers[i].bias, bool(self.layers[i].transposed))
                for i in range(self.depth)]


cdef inline void gemm(char how_a, char how_b, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k,
                      const floating *a, Py_ssize_t step_a, const floating *b, Py_ssize_t step_b,
                      floating beta, floating *c, Py_ssize_t step_c) noexcept nogil:
    """Put a b + beta c into c, column-major as BLAS has it: a row-major matrix is its transpose."""
    cdef int m_ = <int>m, n_ = <int>n, k_ = <int>k
    cdef int step_a_ = <int>step_a, step_b_ = <int>step_b, step_c_ = <int>step_c
    cdef floating one = 1
    if floating is double:
        dgemm(&how_a, &how_b, &m_, &n_, &k_, &one, <double *>a, &step_a_, <double *>b, &step_b_,
              &beta, c, &step_c_)
    else:
        sgemm(&how_a, &how_b, &m_, &n_, &k_, &one, <float *>a, &step_a_, <float *>b, &step_b_,
              &beta, c, &step_c_)


cdef inline void multiply_forward(const Layer *layer, const floating *w, const floating *h,
                                  Py_ssize_t rows, floating *z) noexcept nogil:
    """z (rows, outputs) = h (rows, inputs) W'."""
    if layer.transposed:
        gemm(c"N", c"N", layer.outputs, rows, layer.inputs, w, layer.outputs, h, layer.inputs,
             <floating>0, z, layer.outputs)
    else:
        gemm(c"T", c"N", layer.outputs, rows, layer.inputs, w, layer.inputs, h, layer.inputs,
             <floating>0, z, layer.outputs)


cdef inline void multiply_backward(const Layer *layer, const floating *w, const floating *delta,
                                   Py_ssize_t rows, floating *out) noexcept nogil:
    """out (rows, inputs) = delta (rows, outputs) W."""
    if layer.transposed:
        gemm(c"T", c"N", layer.inputs, rows, layer.outputs, w, layer.outputs, delta,
             layer.outputs, <floating>0, out, layer.inputs)
    else:
        gemm(c"N", c"N", layer.inputs, rows, layer.outputs, w, layer.inputs, delta,
             layer.outputs, <floating>0, out, layer.inputs)


cdef inline const fn_kernels *kernels(const floating *unused) noexcept nogil:
    if floating is double:
        return &family.f8
    else:
        return &family.f4


cdef inline int standardise(const fn_kernels *use, bint wide, const char *row,
                            Py_ssize_t col_step, const double *mean, const double *inverse,
                            Py_ssize_t cols, void *out) noexcept nogil:
    if wide:
        return use.standardise_f8(row, col_step, mean, inverse, cols, out)
    return use.standardise_f4(row, col_step, mean, inverse, cols, out)


cdef const floating *pass_forward(Network net, Py_ssize_t begin, Py_ssize_t end,
                                  const floating *parameters, Py_ssize_t rows, floating *first,
                                  floating *second) noexcept nogil:
    """Take rows, which stand in `first`, through layers [begin, end); return where they end."""
    cdef Py_ssize_t i
    cdef const Layer *layer
    cdef floating *swap
    for i in range(begin, end):
        layer = &net.layers[i]
        multiply_forward(layer, parameters + layer.weight, first, rows, second)
        kernels(first).activate[layer.activation](second, parameters + layer.bias, NULL, rows,
                                                  layer.outputs)
        swap = first
        first = second
        second = swap
    return first


def apply(Network net, Py_ssize_t begin, Py_ssize_t end, const stored[:, :] rows,
          const floating[::1] parameters, const double[::1] shift, const double[::1] inverse,
          const double[::1] mean, const double[::1] scale, floating[:, ::1] work,
          stored[:, ::1] out):
    """Put f((rows - shift) inverse) scale + mean into out, f the layers [begin, end).

    work (2, SLICE_ROWS * width) scratch. Returns whether the rows were finite.
    """
    cdef Py_ssize_t part, start, count, i, inputs = rows.shape[1], outputs = out.shape[1]
    cdef const floating *found
    cdef int good = 1
    cdef const fn_kernels *use = kernels(&work[0, 0])
    with nogil:
        for part in range((rows.shape[0] + SLICE - 1) // SLICE):
            start = part * SLICE
            count = min(<Py_ssize_t>SLICE, rows.shape[0] - start)
            for i in range(count):
                good &= standardise(use, stored is double, <const char *>&rows[start + i, 0],
                                    rows.strides[1], &shift[0], &inverse[0], inputs,
                                    &work[0, i * inputs])
            found = pass_forward(net, begin, end, &parameters[0], count, &work[0, 0], &work[1, 0])
            for i in range(count):
                if stored is double:
                    use.restore_f8(found + i * outputs, &mean[0], &scale[0], outputs,
                                   &out[start + i, 0])
                else:
                    use.restore_f4(found + i * outputs, &mean[0], &scale[0], outputs,
                                   &out[start + i, 0])
    return bool(good)


def row_errors(Network net, const stored[:, :] rows, const floating[::1] parameters,
               const double[::1] mean, const double[::1] inverse, const double[::1] scale,
               floating[:, ::1] work, double[::1] out):
    """Put the squared distance of each row to its reconstruction into out (n,).

    work (3, SLICE_ROWS * width) scratch. Returns whether the rows were finite.
    """
    cdef Py_ssize_t part, start, count, i, inputs = rows.shape[1]
    cdef const floating *found
    cdef int good = 1
    cdef const fn_kernels *use = kernels(&work[0, 0])
    with nogil:
        for part in range((rows.shape[0] + SLICE - 1) // SLICE):
            start = part * SLICE
            count = min(<Py_ssize_t>SLICE, rows.shape[0] - start)
            for i in range(count):
                good &= standardise(use, stored is double, <const char *>&rows[start + i, 0],
                                    rows.strides[1], &mean[0], &inverse[0], inputs,
                                    &work[2, i * inputs])
            memcpy(&work[0, 0], &work[2, 0], count * inputs * sizeof(floating))
            found = pass_forward(net, 0, net.depth, &parameters[0], count, &work[0, 0],
                                 &work[1, 0])
            for i in range(count):
                out[start + i] = use.squares(found + i * inputs, &work[2, i * inputs], &scale[0],
                                             inputs)
    return bool(good)


cdef struct Run:
    const char *rows
    Py_ssize_t row_step, col_step, count
    bint wide  # rows are float64
    const int64_t *order
    const void *noise
    void *parameters
    void *first
    void *second
    const double *mean
    const double *inverse
    double *losses
    fn_step step
    int64_t steps
    int update
    bint failed


cdef class Training:
    """Batches of rows through a network and back, on any number of threads.

    The rows of a batch pass in slices of SLICE_ROWS; then gradients and updates follow, each
    weight in the block that holds it, over all rows of the batch. Both cuts are fixed, so no
    result depends on who computes it.
    """

    cdef Network net
    cdef Py_ssize_t batch, slices
    cdef bint single
    cdef char *memory
    cdef void *target            # (batch, inputs)
    cdef void *fed               # the same, or the rows with noise
    cdef void **outputs          # of each layer (batch, outputs); of the last, what is to go back
    cdef void **slopes
    cdef void **deltas
    cdef Py_ssize_t private_size
    cdef char *private           # of each worker: gradients of a block and of its biases
    cdef fd_tickets tickets
    cdef Run job
    cdef object held

    def __cinit__(self, Network net, Py_ssize_t batch, bint single, bint noisy,
                  Py_ssize_t workers):
        cdef Py_ssize_t i, item = 4 if single else 8, line = 64, total = 0, pad
        cdef Py_ssize_t inputs = net.layers[0].inputs
        cdef char *at
        self.net, self.batch, self.single = net, batch, single
        self.slices = (batch + SLICE - 1) // SLICE
        self.private_size = ((net.block_size + net.width) * item + 2 * line) // line * line
        total = (2 if noisy else 1) * (batch * inputs * item + line) + line
        for i in range(net.depth):
            total += 3 * (batch * net.layers[i].outputs * item + line)
        total += workers * self.private_size
        self.memory = <char *>malloc(total)
        self.outputs = <void **>calloc(3 * net.depth, sizeof(void *))
        if self.memory == NULL or self.outputs == NULL:
            raise MemoryError(f"cannot allocate {total} bytes for batches of {batch} rows")
        self.slopes, self.deltas = self.outputs + net.depth, self.outputs + 2 * net.depth
        at = self.memory + (line - <Py_ssize_t>self.memory % line)
        self.private = at
        at += workers * self.private_size
        self.target = self.fed = at
        pad = (batch * inputs * item + line - 1) // line * line
        at += pad
        if noisy:
            self.fed = at
            at += pad
        for i in range(3 * net.depth):
            pad = (batch * net.layers[i % net.depth].outputs * item + line - 1) // line * line
            self.outputs[i] = at
            at += pad
        # The last layer's residuals are its delta.
        self.deltas[net.depth - 1] = self.outputs[net.depth - 1]

    def __dealloc__(self):
        free(self.memory)
        free(self.outputs)

    def begin(self, const stored[:, :] rows, const int64_t[::1] order,
              const floating[:, ::1] noise, floating[::1] parameters, floating[::1] first,
              floating[::1] second, const double[::1] mean, const double[::1] inverse,
              double[:, ::1] losses, str update, double rate, double momentum, double decay,
              int64_t steps):
        """Prepare an update with each batch of rows[order]; then let `work` be called.

        noise (order, inputs) is added to what the network is fed, or is (0, 0). first and second
        are moments of the optimizer, updated like the parameters; update "keep" only puts
        the gradient into first. losses (batches, slices) gets sums of squared residuals.
        """
        self.held = (rows, order, noise, parameters, first, second, mean, inverse, losses)
        self.tickets.next = self.tickets.done = 0
        cdef Run *job = &self.job
        memset(job, 0, sizeof(Run))
        job.rows, job.count = <const char *>&rows[0, 0], order.shape[0]
        job.row_step, job.col_step = rows.strides[0], rows.strides[1]
        job.wide = stored is double
        job.order = &order[0]
        job.noise = &noise[0, 0] if noise.shape[0] else NULL
        job.parameters, job.first, job.second = &parameters[0], &first[0], &second[0]
        job.mean, job.inverse, job.losses = &mean[0], &inverse[0], &losses[0, 0]
        job.update, job.steps = UPDATES[update], steps
        job.step = fn_step(rate, momentum, decay, 0.9, 0.999, 1e-8, 1, 1)

    def work(self, Py_ssize_t worker):
        """Take tasks until none is left; the threads that call this share them."""
        with nogil:
            if self.single:
                take_tasks(self, worker, <float *>NULL)
            else:
                take_tasks(self, worker, <double *>NULL)

    @property
    def failed(self):
        """Whether a loss was not finite; nothing was updated from that batch on."""
        return bool(self.job.failed)


cdef void take_tasks(Training self, Py_ssize_t worker, floating *typed) noexcept nogil:
    cdef Py_ssize_t full = self.job.count // self.batch, rows, slices, batch, task
    cdef Py_ssize_t each = self.slices + self.net.block_count
    cdef int64_t ticket
    while True:
        ticket = fd_take(&self.tickets.next)
        batch = ticket // each
        rows = min(self.batch, self.job.count - batch * self.batch)
        if rows <= 0:
            return
        slices = (rows + SLICE - 1) // SLICE
        task = ticket - batch * each
        if task < slices:
            fd_await(&self.tickets.done, batch * each)
            if not self.job.failed:
                pass_slice(self, batch, rows, task, typed)
        elif task < slices + self.net.block_count:
            fd_await(&self.tickets.done, batch * each + slices)
            if not all_finite(&self.job.losses[batch * self.slices], slices):
                self.job.failed = True
            elif not self.job.failed:
                update_block(self, batch, rows, task - slices, worker, typed)
        elif batch >= full:
            return
        fd_report(&self.tickets.done)


cdef inline bint all_finite(const double *values, Py_ssize_t count) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(count):
        if not isfinite(values[i]):
            return False
    return True


cdef void pass_slice(Training self, Py_ssize_t batch, Py_ssize_t rows, Py_ssize_t part,
                     const floating *typed) noexcept nogil:
    """Take a slice of a batch through the network and its residuals back."""
    cdef Py_ssize_t start = part * SLICE, count = min(<Py_ssize_t>SLICE, rows - start), i, j
    cdef Py_ssize_t inputs = self.net.layers[0].inputs, depth = self.net.depth, at
    cdef const fn_kernels *use = kernels(typed)
    cdef const floating *parameters = <const floating *>self.job.parameters
    cdef const floating *noise = <const floating *>self.job.noise
    cdef floating *target = <floating *>self.target + start * inputs
    cdef floating *fed = <floating *>self.fed + start * inputs
    cdef const floating *h = fed
    cdef floating *z = fed
    cdef const Layer *layer
    for i in range(count):
        at = batch * self.batch + start + i
        standardise(use, self.job.wide, self.job.rows + self.job.order[at] * self.job.row_step,
                    self.job.col_step, self.job.mean, self.job.inverse, inputs,
                    target + i * inputs)
        if noise != NULL:
            for j in range(inputs):
                fed[i * inputs + j] = target[i * inputs + j] + noise[at * inputs + j]
    for i in range(depth):
        layer = &self.net.layers[i]
        z = <floating *>self.outputs[i] + start * layer.outputs
        multiply_forward(layer, parameters + layer.weight, h, count, z)
        use.activate[layer.activation](
            z, parameters + layer.bias,
            NULL if layer.activation == FN_IDENTITY
            else <floating *>self.slopes[i] + start * layer.outputs, count, layer.outputs)
        h = z
    self.job.losses[batch * self.slices + part] = use.residual(
        z, target, 2.0 / (<double>rows * inputs), count * inputs)
    for i in range(depth - 1, -1, -1):
        layer = &self.net.layers[i]
        z = <floating *>self.deltas[i] + start * layer.outputs
        if layer.activation != FN_IDENTITY:
            use.multiply(z, <floating *>self.slopes[i] + start * layer.outputs,
                         count * layer.outputs)
        if i > 0:
            multiply_backward(layer, parameters + layer.weight, z, count,
                              <floating *>self.deltas[i - 1] + start * layer.inputs)


cdef void update_block(Training self, Py_ssize_t batch, Py_ssize_t rows, Py_ssize_t number,
                       Py_ssize_t worker, const floating *typed) noexcept nogil:
    """Compute the gradient of a block of weights and take a step with it."""
    cdef const Block *block = &self.net.blocks[number]
    cdef const Layer *layer = &self.net.layers[block.layer]
    cdef floating *gradient = <floating *>(self.private + worker * self.private_size)
    cdef fn_step step = self.job.step
    cdef double t = <double>(self.job.steps + batch + 1)
    step.unbias1, step.unbias2 = 1 - pow(step.beta1, t), 1 - pow(step.beta2, t)
    add_gradient(self, block.layer, layer.inputs, block.first_input, block.inputs,
                 layer.outputs, block.first_output, block.outputs, rows, False, gradient)
    if layer.twin >= 0:
        add_gradient(self, layer.twin, layer.inputs, block.first_input, block.inputs,
                     layer.outputs, block.first_output, block.outputs, rows, True, gradient)
    move(self, layer.weight + block.first_output * layer.inputs + block.first_input, gradient,
         block.outputs, block.inputs, layer.inputs, &step)
    step.decay = 0
    if block.first_input == 0:
        move_biases(self, block.layer, block.first_output, block.outputs, rows, gradient, &step)
    if layer.twin >= 0 and block.first_output == 0:
        move_biases(self, layer.twin, block.first_input, block.inputs, rows, gradient, &step)


cdef inline const floating *given_to(Training self, Py_ssize_t layer,
                                     const floating *typed) noexcept nogil:
    return <const floating *>(self.fed if layer == 0 else self.outputs[layer - 1])


cdef void add_gradient(Training self, Py_ssize_t layer, Py_ssize_t all_inputs,
                       Py_ssize_t first_input, Py_ssize_t inputs, Py_ssize_t all_outputs,
                       Py_ssize_t first_output, Py_ssize_t outputs, Py_ssize_t rows, bint twin,
                       floating *gradient) noexcept nogil:
    """Put delta' h into the gradient of a block, or add h' delta of a layer with tied weights."""
    cdef const floating *h = given_to(self, layer, <const floating *>gradient)
    cdef const floating *delta = <const floating *>self.deltas[layer]
    if twin:
        gemm(c"N", c"T", inputs, outputs, rows, delta + first_input, all_inputs,
             h + first_output, all_outputs, <floating>1, gradient, inputs)
    else:
        gemm(c"N", c"T", inputs, outputs, rows, h + first_input, all_inputs,
             delta + first_output, all_outputs, <floating>0, gradient, inputs)


cdef void move_biases(Training self, Py_ssize_t layer, Py_ssize_t first, Py_ssize_t count,
                      Py_ssize_t rows, floating *gradient, const fn_step *step) noexcept nogil:
    cdef Py_ssize_t outputs = self.net.layers[layer].outputs
    kernels(gradient).column_sums(<floating *>self.deltas[layer] + first, rows, count, outputs,
                                  gradient)
    move(self, self.net.layers[layer].bias + first, gradient, 1, count, count, step)


cdef void move(Training self, Py_ssize_t place, const floating *gradient, Py_ssize_t rows,
               Py_ssize_t cols, Py_ssize_t row_step, const fn_step *step) noexcept nogil:
    kernels(gradient).update[self.job.update](
        <floating *>self.job.parameters + place, gradient, <floating *>self.job.first + place,
        <floating *>self.job.second + place, rows, cols, row_step, step)


def activate(str activation, floating[:, ::1] z, const floating[::1] bias,
             floating[:, ::1] slope):
    """Put f(z + bias) into z and f'(z + bias) into slope."""
    cdef int which = ACTIVATIONS[activation]
    with nogil:
        kernels(&z[0, 0]).activate[which](&z[0, 0], &bias[0], &slope[0, 0], z.shape[0],
                                          z.shape[1])
