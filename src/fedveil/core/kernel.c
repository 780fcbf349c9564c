/* Gaussian noise in two passes over memory that stays in the cache, and lengths of rows; privacy/noise.py and
 * core/native.py do the same in torch where this file was not compiled. Uniform numbers come from the caller's
 * generator: nothing here draws any. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
/* One build for all: the loader picks what the processor can do, and the C library has vectorised log, cos and sin. */
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

#define BLOCK 512

/* Box and Muller: (a, b) uniform in [0, 1) become a = r cos(2πb), b = r sin(2πb), r² = −2 var ln(a + 2⁻⁵⁴). */
FOR_EACH_PROCESSOR static void normal(double *restrict a, double *restrict b, Py_ssize_t count, double var)
{
    double r[BLOCK], c[BLOCK];
    for (Py_ssize_t start = 0; start < count; start += BLOCK) {
        Py_ssize_t n = count - start < BLOCK ? count - start : BLOCK;
        double *x = a + start, *y = b + start;
        for (Py_ssize_t i = 0; i < n; i++) r[i] = sqrt(fabs(2.0 * var * log(x[i] + 0x1p-54)));
        /* Loops of their own: cos and sin of one angle together would become a call that is not vectorised. */
        for (Py_ssize_t i = 0; i < n; i++) c[i] = cos(6.283185307179586 * y[i]);
        for (Py_ssize_t i = 0; i < n; i++) x[i] = r[i] * c[i];
        for (Py_ssize_t i = 0; i < n; i++) y[i] = r[i] * sin(6.283185307179586 * y[i]);
    }
}

/* out = g·round(x/g + noise) with inv = 1/g, g a power of two: the product is exact, the sum is one of float64. */
FOR_EACH_PROCESSOR static void onto32(float *restrict out, const float *restrict x, const double *restrict noise,
                                      Py_ssize_t n, double inv, double g)
{
    for (Py_ssize_t i = 0; i < n; i++) out[i] = (float)(rint(noise[i] + (double)x[i] * inv) * g);
}

FOR_EACH_PROCESSOR static void onto64(double *restrict out, const double *restrict x, const double *restrict noise,
                                      Py_ssize_t n, double inv, double g)
{
    for (Py_ssize_t i = 0; i < n; i++) out[i] = rint(noise[i] + x[i] * inv) * g;
}

/* Squared length of a row, its products and their sum in float64. */
FOR_EACH_PROCESSOR static double squared(const float *restrict x, Py_ssize_t n)
{
    double sum = 0.0;
    for (Py_ssize_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

static PyObject *box_muller(PyObject *self, PyObject *args)
{
    Py_buffer uniform;
    double std;
    if (!PyArg_ParseTuple(args, "w*d", &uniform, &std)) return NULL;
    if (uniform.itemsize != sizeof(double)) {
        PyBuffer_Release(&uniform);
        return PyErr_Format(PyExc_ValueError, "box_muller: give float64");
    }
    Py_ssize_t half = uniform.len / (Py_ssize_t)sizeof(double) / 2;
    double *a = uniform.buf;
    Py_BEGIN_ALLOW_THREADS
    normal(a, a + half, half, std * std);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&uniform);
    Py_RETURN_NONE;
}

static PyObject *onto(PyObject *self, PyObject *args)
{
    Py_buffer out, x, noise;
    double g;
    if (!PyArg_ParseTuple(args, "w*y*y*d", &out, &x, &noise, &g)) return NULL;
    Py_ssize_t n = noise.len / (Py_ssize_t)sizeof(double);
    int fits = out.itemsize == x.itemsize && out.len == x.len && x.len == n * x.itemsize &&
               (x.itemsize == sizeof(float) || x.itemsize == sizeof(double)) && noise.itemsize == sizeof(double);
    if (fits) {
        Py_BEGIN_ALLOW_THREADS
        if (x.itemsize == sizeof(float)) onto32(out.buf, x.buf, noise.buf, n, 1.0 / g, g);
        else onto64(out.buf, x.buf, noise.buf, n, 1.0 / g, g);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&x);
    PyBuffer_Release(&noise);
    if (!fits) return PyErr_Format(PyExc_ValueError, "onto: give rows of one length, float32 or float64 alike");
    Py_RETURN_NONE;
}

static PyObject *squares(PyObject *self, PyObject *args)
{
    Py_buffer out, x;
    if (!PyArg_ParseTuple(args, "w*y*", &out, &x)) return NULL;
    Py_ssize_t rows = out.len / (Py_ssize_t)sizeof(double), n = rows ? x.len / (Py_ssize_t)sizeof(float) / rows : 0;
    int fits = out.itemsize == sizeof(double) && x.itemsize == sizeof(float) &&
               x.len == rows * n * (Py_ssize_t)sizeof(float);
    if (fits) {
        double *to = out.buf;
        const float *from = x.buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < rows; i++) to[i] = squared(from + i * n, n);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&out);
    PyBuffer_Release(&x);
    if (!fits) return PyErr_Format(PyExc_ValueError, "squares: give a float64 number for each row of float32");
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"box_muller", box_muller, METH_VARARGS, "Uniform float64 numbers become normal ones, in place, in pairs."},
    {"onto", onto, METH_VARARGS, "out = g·round(x/g + noise)."},
    {"squares", squares, METH_VARARGS, "out_i = Σ x_ij² in float64."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernel", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void) { return PyModule_Create(&module); }
