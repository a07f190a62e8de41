/* For each path on standard input: what fastdr_open found, numbers in full, or why it refused. */
#include <fastdr_file.h>
#include <stdio.h>

static void show(const char *name, const void *data, int single, ptrdiff_t count)
{
    if (!data)
        return;
    printf(" %s", name);
    for (ptrdiff_t i = 0; i < count; i++)
        printf(" %a", single ? (double)((const float *)data)[i] : ((const double *)data)[i]);
}

int main(void)
{
    char path[4096];
    while (fgets(path, sizeof path, stdin)) {
        fastdr_file file;
        path[strcspn(path, "\n")] = 0;
        const char *trouble = fastdr_open(&file, path);
        const fastdr_model *m = &file.model;
        if (trouble)
            printf("no %s", trouble);
        else {
            printf("yes %td %td %td %d %d", m->features, m->axes, m->outputs, m->single, m->turned);
            show("mean", m->mean, 0, m->features);
            show("components", m->components, m->single, m->axes * m->features);
            show("scale", m->scale, 0, m->features);
            show("divisors", m->divisors, 0, m->axes);
            /* Reads every array as an application would; its bounds are the sanitizer's business. */
            double *x = calloc((size_t)(2 * m->features + m->outputs + m->axes + 1), sizeof *x);
            double *z = x + m->features, *back = z + m->outputs, *work = back + m->features, error;
            fastdr_project_f8(m, x, 1, z, work);
            fastdr_inverse_f8(m, z, 1, back, work);
            fastdr_error_f8(m, x, 1, &error, work);
            free(x);
        }
        putchar('\n');
        fastdr_close(&file);
        fastdr_close(&file);
    }
    return 0;
}
