/* The tiles of every instruction set this machine has, against loops in long double.

   Built without Python, so that it can be cross-compiled and run under an emulator:
   cc -std=gnu11 -O3 -Isrc_ext/tile tests/tile_check.c src_ext/tile/tile_base.c -lm && ./a.out */
#include "tile.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures, checks;
static uint64_t state = 1;

/* A number from -1 to 1 that float32 holds exactly. */
static double draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(state >> 40) / (1 << 23) - 1;
}

static void *room(ptrdiff_t bytes)
{
    void *made = aligned_alloc(64, (size_t)(bytes + 127) / 64 * 64);
    if (!made)
        exit(2);
    memset(made, 0, (size_t)(bytes + 127) / 64 * 64);
    return made;
}

static double get(const void *values, ptrdiff_t i, int single)
{
    return single ? ((const float *)values)[i] : ((const double *)values)[i];
}

static void put(void *values, ptrdiff_t i, int single, double x)
{
    if (single)
        ((float *)values)[i] = (float)x;
    else
        ((double *)values)[i] = x;
}

/* `found` may err by 8 eps a term of the sum, whose size is `scale`. */
static void expect(const char *isa, const char *what, int single, long double found,
                   long double wanted, long double scale)
{
    long double eps = single ? 0x1p-23L : 0x1p-52L;
    checks++;
    if (!(fabsl(found - wanted) <= 8 * eps * scale) && failures++ < 20)
        printf("%s %s %s: %.17Lg, expected %.17Lg\n", isa, single ? "f4" : "f8", what, found,
               wanted);
}

/* Scatter of a panel: pack, recentre, multiply, and the rank-one update. */
static void scatter(const fd_tile *tile, const fd_kernels *kernel, const fd_matrix *x, int single)
{
    const ptrdiff_t n = x->rows, d = x->cols, width = kernel->width;
    const ptrdiff_t strips = (d + width - 1) / width, padded = strips * width;
    double *shift = room(d * 8), *sums = room(padded * 8), *squares = room(padded * 8);
    double *triangle = room(fd_triangle_offset(strips, strips, width) * 8);
    double *v = room(padded * 8);
    void *packed = room(kernel->panel_bytes(d));
    for (ptrdiff_t j = 0; j < d; j++)
        shift[j] = 3, v[j] = draw();
    fd_affine affine = {shift, NULL, NULL};
    kernel->pack(x, 0, n, &affine, packed, sums, squares);
    for (ptrdiff_t j = 0; j < d; j++) {
        long double sum = 0, square = 0;
        for (ptrdiff_t i = 0; i < n; i++) {
            long double value = get(x->data, i * d + j, single) - 3.0L;
            sum += value, square += value * value;
        }
        expect(tile->name, "sum", single, sums[j], sum, 4 * n);
        expect(tile->name, "squares", single, squares[j], square, 16 * n);
        sums[j] /= (double)n;
    }
    kernel->recentre(packed, n, d, sums, NULL);
    fd_panels panels = {packed, n, kernel->panel_rows, 0};
    kernel->multiply(&panels, d, 0, strips, 0, strips, triangle, NULL, 0);
    tile->add_rank_one(triangle, d, width, v, 2.5);
    for (ptrdiff_t i = 0; i < d; i++)
        for (ptrdiff_t j = i; j < d; j++) {
            const ptrdiff_t s = i / width, ld = (strips - s) * width;
            long double wanted = 2.5L * v[i] * v[j];
            for (ptrdiff_t row = 0; row < n; row++)
                wanted += (get(x->data, row * d + i, single) - 3.0L - sums[i]) *
                          (get(x->data, row * d + j, single) - 3.0L - sums[j]);
            expect(tile->name, "scatter", single,
                   triangle[fd_triangle_offset(s, strips, width) + (i - s * width) * ld + j -
                            s * width],
                   wanted, 4 * n + 8);
        }
    free(shift), free(sums), free(squares), free(triangle), free(v), free(packed);
}

/* Many columns, of which panels are multiplied together and the triangle part by part. */
static void wide(const fd_tile *tile, const fd_kernels *kernel, ptrdiff_t n, ptrdiff_t d, int dtype)
{
    const ptrdiff_t size = dtype == FD_F8 ? 8 : dtype == FD_F4 ? 4 : 1, width = kernel->width;
    const ptrdiff_t strips = (d + width - 1) / width, padded = strips * width;
    const ptrdiff_t each = kernel->wide_rows, apart = (kernel->panel_bytes(d) + 63) / 64 * 64;
    double *shift = room(d * 8), *sums = room(padded * 8), *squares = room(padded * 8);
    double *triangle = room(fd_triangle_offset(strips, strips, width) * 8);
    char *packed = room(FD_TOGETHER * apart), *data = room(n * d * size);
    for (ptrdiff_t i = 0; i < n * d; i++)
        if (dtype == FD_U1)
            data[i] = (char)(uint8_t)(127.5 + 127.5 * draw());
        else
            put(data, i, dtype == FD_F4, draw());
    fd_matrix x = {data, n, d, d * size, size, dtype};
    fd_affine affine = {shift, NULL, NULL};
    for (ptrdiff_t p = 0; p * each < n; p++)
        kernel->pack(&x, p * each, (p + 1) * each < n ? (p + 1) * each : n, &affine,
                     packed + p * apart, sums, squares);
    fd_panels panels = {packed, n, each, apart};
    for (ptrdiff_t j = 0; j < strips; j += 16)
        for (ptrdiff_t i = j / 48 * 48; i < strips; i += 48)
            kernel->multiply(&panels, d, j, j + 16 < strips ? j + 16 : strips, i,
                             i + 48 < strips ? i + 48 : strips, triangle, data, n * d * size);
    for (ptrdiff_t i = 0; i < d; i += 3)
        for (ptrdiff_t j = i; j < d; j += i % 5 + 1) {
            const ptrdiff_t s = i / width, ld = (strips - s) * width;
            long double wanted = 0;
            for (ptrdiff_t row = 0; row < n; row++) {
                const ptrdiff_t at = row * d;
                wanted += dtype == FD_U1
                    ? (long double)((uint8_t)data[at + i] * (uint8_t)data[at + j])
                    : (long double)get(data, at + i, dtype == FD_F4) *
                          get(data, at + j, dtype == FD_F4);
            }
            expect(tile->name, "scatter of many columns", dtype == FD_F4,
                   triangle[fd_triangle_offset(s, strips, width) + (i - s * width) * ld + j -
                            s * width],
                   wanted, dtype == FD_U1 ? 0 : n);
        }
    free(shift), free(sums), free(squares), free(triangle), free(packed), free(data);
}

/* Few columns, multiplied as they are read: by rows in place, and through the stage. */
static void square(const fd_tile *tile, const fd_kernels *kernel, const fd_matrix *x, int single)
{
    const ptrdiff_t n = x->rows, d = x->cols, width = kernel->width;
    const ptrdiff_t strips = (d + width - 1) / width;
    double shift[16], sums[16], squares[16], products[FD_TURNED];
    if (!kernel->square || strips > 2)
        return;
    void *stage = room(kernel->panel_bytes(d)), *turned = room(n * d * x->col_step);
    double *triangle = room(fd_triangle_offset(strips, strips, width) * 8);
    fd_matrix views[2] = {*x, *x};
    views[1].data = turned; /* the same by columns */
    views[1].row_step = x->col_step, views[1].col_step = n * x->col_step;
    for (ptrdiff_t i = 0; i < n; i++)
        for (ptrdiff_t j = 0; j < d; j++)
            put(turned, j * n + i, single, get(x->data, i * d + j, single));
    for (int view = 0; view < 2; view++) {
        for (ptrdiff_t j = 0; j < d; j++)
            shift[j] = 1.0 / 3; /* exact in float64 only */
        if (kernel->square(views + view, 0, n, shift, stage, sums, squares, products) == single &&
            failures++ < 20)
            printf("%s: a shift was taken or refused wrongly\n", tile->name);
        for (ptrdiff_t j = 0; j < d; j++)
            shift[j] = 3 + (double)j;
        memset(triangle, 0, (size_t)fd_triangle_offset(strips, strips, width) * 8);
        kernel->square(views + view, 0, n, shift, stage, sums, squares, products);
        kernel->unfold(products, d, triangle);
        for (ptrdiff_t i = 0; i < d; i++)
            for (ptrdiff_t j = i; j < d; j++) {
                long double sum = 0, wanted = 0;
                for (ptrdiff_t row = 0; row < n; row++) {
                    long double left = get(x->data, row * d + i, single) - (long double)shift[i];
                    sum += left;
                    wanted += left * (get(x->data, row * d + j, single) - (long double)shift[j]);
                }
                const ptrdiff_t s = i / width, ld = (strips - s) * width;
                expect(tile->name, "few columns", single,
                       triangle[fd_triangle_offset(s, strips, width) + (i - s * width) * ld + j -
                                s * width],
                       wanted, n * (4 + i) * (4 + j));
                if (i == j) { /* the sum in float64 whatever the rows are */
                    expect(tile->name, "sum of few columns", 0, sums[i], sum, n * (4 + i));
                    expect(tile->name, "squares of few columns", single, squares[i], wanted,
                           n * (4 + i) * (4 + i));
                }
            }
    }
    free(stage), free(turned), free(triangle);
}

/* Scatter of bytes, multiplied as pairs of int16: exact. */
static void bytes(const fd_tile *tile, ptrdiff_t n, ptrdiff_t d)
{
    const fd_kernels *kernel = &tile->i2;
    const ptrdiff_t width = kernel->width, strips = (d + width - 1) / width;
    double *shift = room(d * 8), *sums = room(strips * width * 8);
    double *squares = room(strips * width * 8);
    double *triangle = room(fd_triangle_offset(strips, strips, width) * 8);
    void *packed = room(kernel->panel_bytes(d));
    uint8_t *data = room(n * d);
    for (ptrdiff_t j = 0; j < d; j++)
        shift[j] = (double)(j % 5 * 60);
    for (ptrdiff_t i = 0; i < n * d; i++)
        data[i] = (uint8_t)(127.5 + 127.5 * draw());
    fd_matrix x = {(const char *)data, n, d, d, 1, FD_U1};
    fd_affine affine = {shift, NULL, NULL};
    kernel->pack(&x, 0, n, &affine, packed, sums, squares);
    fd_panels panels = {packed, n, kernel->panel_rows, 0};
    kernel->multiply(&panels, d, 0, strips, 0, strips, triangle, NULL, 0);
    for (ptrdiff_t i = 0; i < d; i++)
        for (ptrdiff_t j = i; j < d; j++) {
            const ptrdiff_t s = i / width, ld = (strips - s) * width;
            long double wanted = 0;
            for (ptrdiff_t row = 0; row < n; row++)
                wanted += (data[row * d + i] - shift[i]) * (data[row * d + j] - shift[j]);
            expect(tile->name, "scatter of bytes", 0,
                   triangle[fd_triangle_offset(s, strips, width) + (i - s * width) * ld + j -
                            s * width],
                   wanted, 0);
        }
    free(shift), free(sums), free(squares), free(triangle), free(packed), free(data);
}

/* Projection and reconstruction, row errors, and the Gram action. */
static void products(const fd_tile *tile, const fd_kernels *kernel, const fd_matrix *x,
                     ptrdiff_t q, int single)
{
    const ptrdiff_t n = x->rows, d = x->cols, size = single ? 4 : 8, w = kernel->gram_width;
    const ptrdiff_t strips = 2, columns = strips * w, wide = columns - 1;
    double *shift = room(d * 8), *offset = room(q * 8), *errors = room(n * 8);
    double *taken = room(columns * 8), *sums = room(columns * 8);
    void *b = room(d * q * size), *back = room(q * d * size), *out = room(n * q * size);
    const ptrdiff_t stacked = (d + d % 2) * columns * size;
    void *given = room(d * columns * size), *v = room(stacked), *y = room(stacked);
    void *y_apart = room(stacked), *plain = room(d * columns * size);
    void *once = room(d * wide * size), *twice = room(d * wide * size);
    const fd_matrix factor = {given, d, columns, columns * size, size, x->dtype};
    void *product_work = room(kernel->rows_work(d, q)), *gram_work = room(kernel->gram_work(d));
    void *error_work = room(kernel->errors_work(d, q));
    long double *z = room(q * (ptrdiff_t)sizeof *z), *t = room(n * columns * (ptrdiff_t)sizeof *t);
    for (ptrdiff_t j = 0; j < d; j++)
        shift[j] = draw();
    for (ptrdiff_t j = 0; j < q; j++)
        offset[j] = draw();
    for (ptrdiff_t j = 0; j < d * q; j++)
        put(b, j, single, draw()), put(back, j, single, draw() / (double)q);
    for (ptrdiff_t j = 0; j < d * columns; j++)
        put(given, j, single, draw());
    if (!kernel->rows_product(x, 0, n, shift, b, q, offset, out, product_work) && failures++ < 20)
        printf("%s: finite rows were said not to be\n", tile->name);
    kernel->row_errors(x, 0, n, shift, b, back, q, errors, error_work);
    kernel->gram_stack(&factor, v);
    kernel->gram_apply(x, 0, n, shift, NULL, v, y, strips, sums, gram_work);
    kernel->gram_offset(shift, d, v, strips, taken);
    kernel->gram_apply(x, 0, n, shift, taken, v, y_apart, strips, sums, gram_work);
    kernel->gram_add(y_apart, d, wide, shift, sums, 1, once, wide * size);
    kernel->gram_add(y, d, columns, NULL, NULL, 1, plain, columns * size);
    kernel->gram_add(y, d, wide, NULL, NULL, 1, twice, wide * size);
    kernel->gram_add(y_apart, d, wide, shift, sums, 0, twice, wide * size);
    for (ptrdiff_t i = 0; i < n; i++) {
        long double error = 0;
        for (ptrdiff_t k = 0; k < q; k++) {
            z[k] = 0;
            for (ptrdiff_t j = 0; j < d; j++)
                z[k] += (get(x->data, i * d + j, single) - (long double)shift[j]) *
                        get(b, j * q + k, single);
            expect(tile->name, "product", single, get(out, i * q + k, single), z[k] + offset[k],
                   2 * d + 1);
        }
        for (ptrdiff_t j = 0; j < d; j++) {
            long double gap = get(x->data, i * d + j, single) - (long double)shift[j];
            for (ptrdiff_t k = 0; k < q; k++)
                gap -= z[k] * get(back, k * d + j, single);
            error += gap * gap;
        }
        expect(tile->name, "row error", single, errors[i], error,
               (2 * d + 2) * sqrtl((long double)d * error) + 4 * d);
        for (ptrdiff_t c = 0; c < columns; c++) {
            t[i * columns + c] = 0;
            for (ptrdiff_t j = 0; j < d; j++)
                t[i * columns + c] +=
                    (get(x->data, i * d + j, single) - (long double)shift[j]) *
                    get(given, j * columns + c, single);
        }
    }
    for (ptrdiff_t j = 0; j < d; j++)
        for (ptrdiff_t c = 0; c < columns; c++) {
            long double wanted = 0;
            for (ptrdiff_t i = 0; i < n; i++)
                wanted += (get(x->data, i * d + j, single) - (long double)shift[j]) *
                          t[i * columns + c];
            expect(tile->name, "gram", single, get(plain, j * columns + c, single), wanted,
                   4 * d * n);
            if (c == wide)
                continue;
            expect(tile->name, "gram, apart", single, get(once, j * wide + c, single), wanted,
                   16 * d * n);
            expect(tile->name, "gram, twice", single, get(twice, j * wide + c, single),
                   2 * wanted, 20 * d * n);
        }
    free(shift), free(offset), free(errors), free(b), free(back), free(out), free(given), free(v);
    free(y), free(y_apart), free(plain), free(once), free(twice), free(taken), free(sums);
    free(product_work), free(error_work), free(gram_work);
    free(z), free(t);
}

int main(void)
{
    static const ptrdiff_t rows[] = {1, 7, 64, 191}, cols[] = {1, 5, 8, 13, 16, 33, 100};
    const fd_tile *tiles[3];
    const int count = fd_tiles(tiles);
    for (int which = 0; which < count; which++)
        for (int single = 0; single < 2; single++)
            for (int r = 0; r < 4; r++)
                for (int c = 0; c < 7; c++) {
                    const ptrdiff_t n = rows[r], d = cols[c], size = single ? 4 : 8;
                    void *data = room(n * d * size);
                    for (ptrdiff_t i = 0; i < n * d; i++)
                        put(data, i, single, draw());
                    fd_matrix x = {data, n, d, d * size, size, single ? FD_F4 : FD_F8};
                    const fd_kernels *kernel = single ? &tiles[which]->f4 : &tiles[which]->f8;
                    scatter(tiles[which], kernel, &x, single);
                    square(tiles[which], kernel, &x, single);
                    products(tiles[which], kernel, &x, 1, single);
                    products(tiles[which], kernel, &x, 13, single);
                    if (single)
                        bytes(tiles[which], n, d);
                    free(data);
                }
    for (int which = 0; which < count; which++)
        for (int whole = 0; whole < 2; whole++) {
            const fd_tile *tile = tiles[which];
            const fd_kernels *kernels[] = {&tile->f8, &tile->f4, &tile->i2};
            static const int dtypes[] = {FD_F8, FD_F4, FD_U1};
            for (int k = 0; k < 3; k++) {
                const ptrdiff_t each = kernels[k]->wide_rows;
                wide(tile, kernels[k], whole ? 2 * each : each + 37, 517 + 13 * k, dtypes[k]);
                wide(tile, kernels[k], 29, FD_WIDE_COLS + 1, dtypes[k]);
            }
        }
    for (int which = 0; which < count; which++)
        printf("%s ", tiles[which]->name);
    printf("tiles: %d checks, %d failures\n", checks, failures);
    return failures > 0;
}
