/* Project rows of numbers from standard input with a saved model:

       cc project.c -I"$(python -c 'import fastdr; print(fastdr.get_include())')" -lm -o project
       ./project model.fdr < rows.txt

   Each row of the model's features becomes one line: its scores, then its squared distance to
   the reconstruction. */
#include <fastdr_file.h>
#include <stdio.h>

int main(int count, char **arguments)
{
    fastdr_file file;
    const char *trouble = count == 2 ? fastdr_open(&file, arguments[1]) : "usage: project FILE";
    if (trouble) {
        fprintf(stderr, "%s: %s\n", count == 2 ? arguments[1] : arguments[0], trouble);
        return 1;
    }
    const fastdr_model *model = &file.model;
    double *x = malloc((size_t)(model->features + model->outputs + model->axes) * sizeof *x);
    double *z = x + model->features, *work = z + model->outputs;
    ptrdiff_t filled = 0;
    while (x && scanf("%lf", &x[filled]) == 1) {
        if (++filled < model->features)
            continue;
        filled = 0;
        fastdr_project_f8(model, x, 1, z, work);
        for (ptrdiff_t j = 0; j < model->outputs; j++)
            printf("%.17g ", z[j]);
        double error;
        fastdr_error_f8(model, x, 1, &error, work);
        printf("%.17g\n", error);
    }
    free(x);
    fastdr_close(&file);
    return 0;
}
