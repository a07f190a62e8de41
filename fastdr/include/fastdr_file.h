/* A saved fastdr model in C or C++: mapped, checked, ready for the functions of fastdr.h.

       fastdr_file file;
       const char *trouble = fastdr_open(&file, "model.fdr");
       if (trouble) { fprintf(stderr, "model.fdr: %s\n", trouble); return 1; }
       fastdr_project_f8(&file.model, rows, count, scores, work);
       fastdr_close(&file);

   docs/model-format.md describes the file. Whatever its bytes are, fastdr_open returns NULL or the
   reason why it is no model, and reads only inside it. The arrays stay in the mapped file, so
   processes share them; a file must not be cut short while it is open (`save` never does that: it
   replaces a file as a whole). Needs POSIX and a little-endian machine; link with -lm. */
#ifndef FASTDR_FILE_H
#define FASTDR_FILE_H

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fastdr.h"

#define FASTDR_FORMAT 1
#define FASTDR_MAX_HEADER 100000000 /* of the safetensors format */
#define FASTDR_MAX_EXPONENT 4096    /* double is from 2^-1074 to 2^1024 */

typedef struct {
    fastdr_model model;
    double *divisors;
    void *map;
    size_t size;
} fastdr_file;

/* JSON, as far as it is needed: a piece of text that shrinks from the front. Nothing is trusted to
   be well formed; what is not understood ends the reading. */
typedef struct {
    const char *at, *end;
} fastdr_text;

/* Next character after white space, not taken; 0 at the end. */
static inline int fastdr_peek(fastdr_text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\n' || *t->at == '\r' || *t->at == '\t'))
        t->at++;
    return t->at < t->end ? (unsigned char)*t->at : 0;
}

static inline int fastdr_take(fastdr_text *t, char expected)
{
    if (fastdr_peek(t) != (unsigned char)expected)
        return 0;
    t->at++;
    return 1;
}

/* Take a string; `inside` is what stands between its quotes, escapes and all. */
static inline int fastdr_string(fastdr_text *t, fastdr_text *inside)
{
    if (!fastdr_take(t, '"'))
        return 0;
    inside->at = t->at;
    while (t->at < t->end && *t->at != '"')
        t->at += *t->at == '\\' ? (t->end - t->at < 2 ? 1 : 2) : 1;
    inside->end = t->at;
    return fastdr_take(t, '"');
}

/* Take any value, nested to any depth. */
static inline int fastdr_skip(fastdr_text *t, fastdr_text *value)
{
    fastdr_text ignored;
    size_t depth = 0;
    fastdr_peek(t);
    value->at = t->at;
    do {
        const int next = fastdr_peek(t);
        if (!next)
            return 0;
        if (next == '"') {
            if (!fastdr_string(t, &ignored))
                return 0;
        } else if (next == '{' || next == '[') {
            depth++;
            t->at++;
        } else if (next == '}' || next == ']') {
            if (!depth--)
                return 0;
            t->at++;
        } else if (next == ',' || next == ':') {
            if (!depth)
                return 0;
            t->at++;
        } else
            while (t->at < t->end && !strchr(" \n\r\t\"{}[],:", *t->at))
                t->at++;
    } while (depth);
    value->end = t->at;
    return value->at < value->end;
}

static inline int fastdr_equals(fastdr_text t, const char *word)
{
    return (size_t)(t.end - t.at) == strlen(word) && !memcmp(t.at, word, strlen(word));
}

/* Find a member of an object; of two with the same name the last counts. */
static inline int fastdr_member(fastdr_text object, const char *name, fastdr_text *value)
{
    int found = 0;
    if (!fastdr_take(&object, '{'))
        return 0;
    do {
        fastdr_text key, each;
        if (!fastdr_string(&object, &key) || !fastdr_take(&object, ':') ||
            !fastdr_skip(&object, &each))
            return found;
        if (fastdr_equals(key, name)) {
            *value = each;
            found = 1;
        }
    } while (fastdr_take(&object, ','));
    return found;
}

/* A whole number of at most 62 bits. */
static inline int fastdr_whole(fastdr_text t, int64_t *number)
{
    const int negative = fastdr_take(&t, '-');
    int64_t total = 0;
    if (t.at == t.end)
        return 0;
    for (; t.at < t.end && *t.at >= '0' && *t.at <= '9'; t.at++) {
        if (total > (INT64_C(1) << 58))
            return 0;
        total = 10 * total + (*t.at - '0');
    }
    *number = negative ? -total : total;
    return !fastdr_peek(&t) && t.at == t.end;
}

/* Undo the escapes of a string in place; characters beyond ASCII are not needed and become '?'. */
static inline void fastdr_unescape(fastdr_text *t)
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    char *out = (char *)t->at;
    for (const char *in = t->at; in < t->end; in++) {
        if (*in != '\\' || in + 1 == t->end) {
            *out++ = *in;
            continue;
        }
        in++;
        const char *known = *in ? strchr(from, *in) : NULL;
        if (*in == 'u' && t->end - in > 4) {
            char digits[5] = {in[1], in[2], in[3], in[4], 0};
            const long code = strtol(digits, NULL, 16);
            *out++ = (char)(code > 0 && code < 128 ? code : '?');
            in += 4;
        } else
            *out++ = known ? to[known - from] : *in;
    }
    t->end = out;
}

/* An array of the file: shape (rows, cols), or (cols) with rows = 1. */
typedef struct {
    const void *data;
    ptrdiff_t rows, cols;
    int single;
} fastdr_array;

/* Find an array in the table; `sizes` is how many dimensions it must have. 0: absent or broken. */
static inline int fastdr_find(fastdr_text table, const char *name, int sizes, const char *data,
                              size_t bytes, fastdr_array *array)
{
    fastdr_text entry, part, kind, item;
    int64_t shape[2] = {1, 1}, span[2];
    if (!fastdr_member(table, name, &entry) || !fastdr_member(entry, "dtype", &part) ||
        !fastdr_string(&part, &kind))
        return 0;
    array->single = fastdr_equals(kind, "F32");
    if (!array->single && !fastdr_equals(kind, "F64"))
        return 0;
    if (!fastdr_member(entry, "shape", &part) || !fastdr_take(&part, '['))
        return 0;
    for (int i = 2 - sizes; i < 2; i++)
        if (!fastdr_skip(&part, &item) || !fastdr_whole(item, &shape[i]) || shape[i] < 0 ||
            !fastdr_take(&part, i == 1 ? ']' : ','))
            return 0;
    if (!fastdr_member(entry, "data_offsets", &part) || !fastdr_take(&part, '['))
        return 0;
    for (int i = 0; i < 2; i++)
        if (!fastdr_skip(&part, &item) || !fastdr_whole(item, &span[i]) || span[i] < 0 ||
            !fastdr_take(&part, i == 1 ? ']' : ','))
            return 0;
    const int64_t width = array->single ? 4 : 8;
    if (span[0] > span[1] || (uint64_t)span[1] > bytes ||
        (uintptr_t)(data + span[0]) % (uintptr_t)width)
        return 0;
    const int64_t count = (span[1] - span[0]) / width;
    if ((span[1] - span[0]) % width || (shape[0] && shape[1] > count / shape[0]) ||
        shape[0] * shape[1] != count)
        return 0;
    array->data = data + span[0];
    array->rows = (ptrdiff_t)shape[0];
    array->cols = (ptrdiff_t)shape[1];
    return 1;
}

static inline int fastdr_in_range(const fastdr_array *array, double least)
{
    const ptrdiff_t count = array->rows * array->cols;
    for (ptrdiff_t i = 0; i < count; i++) {
        const double value = array->single ? (double)((const float *)array->data)[i]
                                           : ((const double *)array->data)[i];
        if (!(value >= least && value < HUGE_VAL))
            return 0;
    }
    return 1;
}

/* Read the header, which says what the arrays mean. */
static inline const char *fastdr_read_header(fastdr_text header, int64_t *rank, int64_t *exponent,
                                             int *whitened, int *turned)
{
    fastdr_text value, kind;
    int64_t format;
    if (!fastdr_member(header, "format", &value) || !fastdr_whole(value, &format) || format < 1)
        return "its header has no format number";
    if (format > FASTDR_FORMAT)
        return "it was written by a later version of fastdr; upgrade this reader";
    if (!fastdr_member(header, "kind", &value) || !fastdr_string(&value, &kind) ||
        !fastdr_equals(kind, "LinearModel"))
        return "it is not a linear model";
    if (!fastdr_member(header, "rank", &value) || !fastdr_whole(value, rank) ||
        !fastdr_member(header, "exponent", &value) || !fastdr_whole(value, exponent) ||
        !fastdr_member(header, "whiten", &value))
        return "its header lacks rank, exponent or whiten";
    *turned = fastdr_equals(value, "\"zca\"");
    *whitened = *turned || fastdr_equals(value, "\"pca\"");
    if (!*whitened && !fastdr_equals(value, "false"))
        return "whiten is not false, \"pca\" or \"zca\"";
    return NULL;
}

/* Fill the model from the arrays of a file. */
static inline const char *fastdr_read_arrays(fastdr_file *file, fastdr_text table, const char *data,
                                             size_t bytes, int64_t rank, int64_t exponent,
                                             int whitened)
{
    fastdr_model *m = &file->model;
    fastdr_array mean, components, variances, scale;
    fastdr_text entry;
    if (!fastdr_find(table, "mean", 1, data, bytes, &mean) || mean.single ||
        !fastdr_find(table, "components", 2, data, bytes, &components) ||
        !fastdr_find(table, "variances", 1, data, bytes, &variances) || variances.single)
        return "mean, components or variances are absent or outside the file";
    const int scaled = fastdr_member(table, "scale", &entry);
    if (scaled && (!fastdr_find(table, "scale", 1, data, bytes, &scale) || scale.single ||
                   scale.cols != mean.cols))
        return "scale is broken";
    if (mean.cols != components.cols || variances.cols != components.rows || rank < 0 ||
        rank > components.rows)
        return "its arrays do not fit together";
    if (exponent > FASTDR_MAX_EXPONENT || exponent < -FASTDR_MAX_EXPONENT)
        return "its exponent is beyond what double has";
    if (!fastdr_in_range(&mean, -HUGE_VAL) || !fastdr_in_range(&components, -HUGE_VAL) ||
        !fastdr_in_range(&variances, 0) || (scaled && !fastdr_in_range(&scale, 5e-324)))
        return "its arrays hold NaN, infinity, or negative variances or scales";
    m->features = components.cols;
    m->axes = components.rows;
    m->outputs = m->turned ? m->features : m->axes;
    m->mean = (const double *)mean.data;
    m->components = m->back = components.data;
    m->single = components.single;
    m->scale = scaled ? (const double *)scale.data : NULL;
    if (!whitened)
        return NULL;
    file->divisors = (double *)malloc((size_t)(m->axes + 1) * sizeof(double));
    if (!file->divisors)
        return "out of memory";
    m->divisors = file->divisors;
    for (ptrdiff_t j = 0; j < m->axes; j++) {
        file->divisors[j] = j < rank ? ldexp(sqrt(((const double *)variances.data)[j]),
                                             (int)-exponent)
                                     : HUGE_VAL;
        if (j < rank && !(file->divisors[j] > 0 && file->divisors[j] < HUGE_VAL))
            return "a deviation within its rank is 0 or infinite";
    }
    return NULL;
}

static inline const char *fastdr_read(fastdr_file *file)
{
    const char *content = (const char *)file->map;
    fastdr_text table, part, text;
    int64_t rank, exponent;
    uint64_t length = 0;
    int whitened;
    for (int i = 7; i >= 0; i--)
        length = length << 8 | (unsigned char)content[i];
    if (length > FASTDR_MAX_HEADER || length > file->size - 8)
        return "its header is longer than the file";
    table.at = content + 8;
    table.end = table.at + length;
    if (!fastdr_member(table, "__metadata__", &part) || !fastdr_member(part, "fastdr", &part) ||
        !fastdr_string(&part, &text))
        return "it holds no fastdr model";
    const size_t size = (size_t)(text.end - text.at);
    char *copy = (char *)malloc(size + 1);
    if (!copy)
        return "out of memory";
    memcpy(copy, text.at, size);
    text.at = copy;
    text.end = copy + size;
    fastdr_unescape(&text);
    const char *trouble =
        fastdr_read_header(text, &rank, &exponent, &whitened, &file->model.turned);
    free(copy);
    if (trouble)
        return trouble;
    return fastdr_read_arrays(file, table, content + 8 + length, file->size - 8 - (size_t)length,
                              rank, exponent, whitened);
}

/* Release what fastdr_open holds; safe to call twice, and after a failed fastdr_open. */
static inline void fastdr_close(fastdr_file *file)
{
    if (file->map)
        munmap(file->map, file->size);
    free(file->divisors);
    memset(file, 0, sizeof *file);
}

/* Map the model saved at `path`. Returns NULL, or why this is not possible. */
static inline const char *fastdr_open(fastdr_file *file, const char *path)
{
    struct stat info;
    memset(file, 0, sizeof *file);
    const uint16_t order = 1;
    if (*(const unsigned char *)&order != 1)
        return "this machine is not little-endian";
    const int descriptor = open(path, O_RDONLY | O_NONBLOCK); /* not to wait at a pipe */
    if (descriptor < 0)
        return "cannot open the file";
    const int known = !fstat(descriptor, &info) && S_ISREG(info.st_mode);
    if (!known || info.st_size < 8 || (uint64_t)info.st_size > PTRDIFF_MAX) {
        close(descriptor);
        return known ? "it is too short or too long" : "it is not a regular file";
    }
    file->size = (size_t)info.st_size;
    file->map = mmap(NULL, file->size, PROT_READ, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (file->map == MAP_FAILED) {
        file->map = NULL;
        return "cannot map the file";
    }
    const char *trouble = fastdr_read(file);
    if (trouble)
        fastdr_close(file);
    return trouble;
}

#endif
