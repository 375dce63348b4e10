/* Stands for libcusparse on a CPU: the functions that the binding calls, on host memory, prototypes as in cusparse.h.
   ALG1 rounds a 16-bit output after every product, ALG2 once, and ALG3 is refused. SpMM wants a preprocessed workspace.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int64_t rows, cols, nnz;
    int32_t *offsets, *columns;
    void *values, *workspace;
    int type, algorithm;
} Csr;
typedef struct {
    int64_t rows, cols, ld;
    void* values;
    int type, order;
} Dense;
enum { SUCCESS = 0, INVALID_VALUE = 3, NOT_SUPPORTED = 10, R_32F = 0, R_16F = 2 };

int live_descriptors = 0;
void* stream = NULL;
static int handle;

static float get(const void* values, int type, int64_t i) {
    return type == R_16F ? (float)((const _Float16*)values)[i] : ((const float*)values)[i];
}
static void set(void* values, int type, int64_t i, float value) {
    if (type == R_16F)
        ((_Float16*)values)[i] = (_Float16)value;
    else
        ((float*)values)[i] = value;
}

const char* cusparseGetErrorName(int status) {
    return status == NOT_SUPPORTED ? "CUSPARSE_STATUS_NOT_SUPPORTED" : "CUSPARSE_STATUS_INVALID_VALUE";
}
int cusparseCreate(void** made) {
    *made = &handle;
    return SUCCESS;
}
int cusparseSetStream(void* on, void* to) {
    stream = to;
    return on == &handle ? SUCCESS : INVALID_VALUE;
}

int cusparseCreateCsr(void** made, int64_t rows, int64_t cols, int64_t nnz, void* offsets, void* columns, void* values,
                      int offsets_type, int columns_type, int base, int type) {
    if (offsets_type != 2 || columns_type != 2 || base != 0 || !columns || !values) return INVALID_VALUE;
    Csr csr = {rows, cols, nnz, offsets, columns, values, NULL, type, -1};
    *made = memcpy(malloc(sizeof csr), &csr, sizeof csr);
    ++live_descriptors;
    return SUCCESS;
}
int cusparseCreateDnMat(void** made, int64_t rows, int64_t cols, int64_t ld, void* values, int type, int order) {
    if (ld < cols || order != 2) return INVALID_VALUE;
    Dense dense = {rows, cols, ld, values, type, order};
    *made = memcpy(malloc(sizeof dense), &dense, sizeof dense);
    ++live_descriptors;
    return SUCCESS;
}
int cusparseDestroySpMat(void* made) {
    free(made);
    --live_descriptors;
    return SUCCESS;
}
int cusparseDestroyDnMat(void* made) {
    free(made);
    --live_descriptors;
    return SUCCESS;
}

static int check(void* on, int op_a, int op_b, Csr* a, Dense* b, Dense* c, int compute, int algorithm) {
    if (on != &handle || op_a || op_b || compute != R_32F) return INVALID_VALUE;
    if (a->rows != c->rows || a->cols != b->rows || b->cols != c->cols || a->type != b->type) return INVALID_VALUE;
    if (a->offsets[a->rows] != a->nnz) return INVALID_VALUE;
    return algorithm == 4 || algorithm == 6 ? SUCCESS : NOT_SUPPORTED;
}
int cusparseSpMM_bufferSize(void* on, int op_a, int op_b, const void* alpha, void* a, void* b, const void* beta,
                            void* c, int compute, int algorithm, size_t* size) {
    *size = 16;
    return check(on, op_a, op_b, a, b, c, compute, algorithm);
}
int cusparseSpMM_preprocess(void* on, int op_a, int op_b, const void* alpha, void* a, void* b, const void* beta,
                            void* c, int compute, int algorithm, void* workspace) {
    memset(workspace, 1, 16);
    ((Csr*)a)->workspace = workspace;
    ((Csr*)a)->algorithm = algorithm;
    return check(on, op_a, op_b, a, b, c, compute, algorithm);
}
int cusparseSpMM(void* on, int op_a, int op_b, const void* alpha, void* a, void* b, const void* beta, void* c,
                 int compute, int algorithm, void* workspace) {
    const Csr* w = a;
    const Dense *x = b, *y = c;
    if (workspace != w->workspace || algorithm != w->algorithm || ((char*)workspace)[15] != 1) return INVALID_VALUE;
    for (int64_t i = 0; i < y->rows * y->cols; ++i) {
        const int64_t row = i / y->cols, col = i % y->cols, at = row * y->ld + col;
        float sum = *(const float*)beta == 0 ? 0 : *(const float*)beta * get(y->values, y->type, at);
        for (int64_t j = w->offsets[row]; j < w->offsets[row + 1]; ++j) {
            sum += *(const float*)alpha * get(w->values, w->type, j) *
                   get(x->values, x->type, w->columns[j] * x->ld + col);
            if (algorithm == 4) set(y->values, y->type, at, sum), sum = get(y->values, y->type, at);
        }
        set(y->values, y->type, at, sum);
    }
    return check(on, op_a, op_b, a, b, c, compute, algorithm);
}
