/* The kernel as a function of a TVM-FFI module: tensors and numbers in order, then a tensor for each output. Types are
   declared here as the interface defines them (64-bit machines): no header and no library is needed to build this. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_DEFAULT */
#endif
#include <dlfcn.h>
#include <math.h>
#include <stdarg.h>
#include "door.h"

enum { DOOR_NONE = 0, DOOR_INT = 1, DOOR_BOOL = 2, DOOR_FLOAT = 3, DOOR_TENSOR_POINTER = 7, DOOR_TENSOR = 70, DOOR_HEADER_OF_OBJECTS = 24 };
enum { DOOR_CPU = 1, DOOR_CUDA = 2, DOOR_CPU_ONLY = -1 };
enum { DOOR_SIGNED = 0, DOOR_UNSIGNED = 1, DOOR_FLOATING = 2, DOOR_BFLOAT = 4, DOOR_BOOLEAN = 6 };

typedef struct {
  void *data;
  int32_t device, device_id, rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} door_tensor;
typedef struct { int32_t type; uint32_t unused; union { int64_t i; double f; void *p; } v; } door_any;

typedef struct { const char *data; size_t size; } door_bytes;

/* TVM-FFI's functions are looked up when they are needed: another framework may have loaded this library before it. */
static void door_raise(const char *kind, const char *message) {
  void (*raise)(const char *, const char *);
  void *found = dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStr");
  if (!found) return;
  memcpy(&raise, &found, sizeof raise);
  raise(kind, message);
}

static int door_fail(const char *kind, const char *format, ...) {
  char text[DOOR_WORDS];
  va_list given;
  va_start(given, format);
  vsnprintf(text, sizeof text, format, given);
  va_end(given);
  door_raise(kind, text);
  return -1;
}

static int door_misfit(const char *kind, const door_argument *a, const char *got) {
  char text[256];
  return door_fail(kind, DOOR_NAME ": %s: expected %s, got %s", a->name, door_expected(a, text, sizeof text), got);
}

/* The stream that is current on a GPU. */
static void *door_stream(int32_t device_id) {
  void *(*get)(int32_t, int32_t);
  void *found = dlsym(RTLD_DEFAULT, "TVMFFIEnvGetStream");
  if (!found) return NULL;
  memcpy(&get, &found, sizeof get);
  return get(DOOR_CUDA, device_id);
}

static const door_tensor *door_tensor_of(const door_any *given) {
  return (const door_tensor *)(given->type == DOOR_TENSOR ? (void *)((char *)given->v.p + DOOR_HEADER_OF_OBJECTS) : given->v.p);
}

/* Take a tensor, whatever its extents are: 0, or -1 with the error set. What frameworks have no type for may come as its
   bits. gpu: the GPU that tensors before it are on, DOOR_CPU_ONLY where there was none. */
static int door_take_tensor(const door_argument *a, const door_any *given, void **buffer, int32_t *gpu) {
  if (given->type != DOOR_TENSOR && given->type != DOOR_TENSOR_POINTER) return door_misfit("TypeError", a, "no tensor");
  const door_tensor *t = door_tensor_of(given);
  const int as_bits = t->code == DOOR_UNSIGNED && a->dl >= DOOR_BFLOAT && a->dl != DOOR_BOOLEAN;
  if (DOOR_ON_CUDA && t->device == DOOR_CUDA) {
    if (a->limit) return door_misfit("ValueError", a, "indices on a GPU, which are not looked at there: give them on the CPU");
    if (*gpu != DOOR_CPU_ONLY && *gpu != t->device_id) return door_misfit("ValueError", a, "a tensor on another GPU than the others");
    *gpu = t->device_id;
  } else if (t->device != DOOR_CPU) {
    return door_misfit("ValueError", a, DOOR_ON_CUDA ? "a tensor on another device than a GPU of CUDA or the CPU"
                                                     : "a tensor on another device than the CPU");
  }
  if ((t->code != a->dl && !as_bits) || t->bits != a->bits || t->lanes != 1) {
    char got[64];
    snprintf(got, sizeof got, "a tensor of DLPack's type (%d, %d, %d)", t->code, t->bits, t->lanes);
    return door_misfit("TypeError", a, got);
  }
  if (t->rank != a->rank) return door_misfit("ValueError", a, "a tensor of another shape");
  *buffer = (char *)t->data + t->offset;
  return 0;
}

/* Look at the extents and strides of argument p: 0, or -1 with the error set. */
static int door_fit_tensor(int p, const door_any *given, const door_sizes *sizes) {
  const door_argument *a = &door_arguments[p];
  const door_tensor *t = door_tensor_of(given);
  const int64_t *shape = sizes->of[p].shape;
  for (int n = 0; n < a->rank; ++n)
    if (t->shape[n] != shape[n]) return door_misfit("ValueError", a, "a tensor of another shape");
  int64_t stride = 1;
  for (int n = a->rank - 1; n >= 0 && t->strides && sizes->of[p].bytes; stride *= shape[n--])
    if (t->strides[n] != stride && shape[n] > 1) return door_misfit("ValueError", a, "a tensor that is not contiguous");
  return 0;
}

/* The number of a narrow float nearest to this one, the even one of two. */
static double door_narrowed(double x, int mantissa, int least, double most) {
  int exponent;
  if (isfinite(x)) {
    frexp(x, &exponent);
    const double step = ldexp(1.0, (exponent - 1 > least ? exponent - 1 : least) - mantissa);
    x = rint(x / step) * step;
  }
  return fabs(x) <= most || isnan(x) ? x : mantissa == 3 ? NAN : copysign(INFINITY, x);
}

static double door_as_float(const door_argument *a, double x) {
  if (!strcmp(a->dtype, "float16")) return door_narrowed(x, 10, -14, 65504.0);
  if (!strcmp(a->dtype, "bfloat16")) return door_narrowed(x, 7, -126, ldexp(255.0, 120));
  if (!strcmp(a->dtype, "float8_e4m3")) return door_narrowed(x, 3, -6, 448.0);
  if (!strcmp(a->dtype, "float8_e5m2")) return door_narrowed(x, 2, -14, 57344.0);
  return x;
}

/* Take a number: 0, or -1 with the error set. It is stored as the kernel reads it. */
static int door_take_number(const door_argument *a, const door_any *given, int64_t *kept, void **buffer) {
  *buffer = kept;
  if (a->dl == DOOR_FLOATING) {
    if (given->type != DOOR_FLOAT && given->type != DOOR_INT && given->type != DOOR_BOOL) return door_misfit("TypeError", a, "no number");
    const double x = door_as_float(a, given->type == DOOR_FLOAT ? given->v.f : (double)given->v.i);
    const float y = (float)x;
    memcpy(kept, a->bits == 64 ? (const void *)&x : (const void *)&y, (size_t)a->bits / 8);
    return 0;
  }
  if (given->type != DOOR_INT && given->type != DOOR_BOOL) return door_misfit("TypeError", a, "no integer");
  const int64_t x = given->v.i;
  const int narrow = a->bits < 64;
  const int64_t low = a->dl == DOOR_SIGNED ? (narrow ? -((int64_t)1 << (a->bits - 1)) : INT64_MIN) : 0;
  const int64_t most = a->dl == DOOR_BOOLEAN ? 1 : narrow ? ((int64_t)1 << (a->bits - (a->dl == DOOR_SIGNED))) - 1 : INT64_MAX;
  if (x < low || x > most) {
    char got[32];
    snprintf(got, sizeof got, "%lld", (long long)x);
    return door_misfit("ValueError", a, got);
  }
  const uint8_t x8 = (uint8_t)x;
  const uint16_t x16 = (uint16_t)x;
  const uint32_t x32 = (uint32_t)x;
  const void *from = a->bits == 8 ? (const void *)&x8 : a->bits == 16 ? (const void *)&x16 : a->bits == 32 ? (const void *)&x32 : &x;
  memcpy(kept, from, (size_t)a->bits / 8);
  return 0;
}

/* The argument whose memory an output has a part of, or NULL. */
static const door_argument *door_overlap(void *const *buffers, const door_sizes *sizes, int output) {
  const char *low = (const char *)buffers[output], *high = low + sizes->of[output].bytes;
  for (int p = 0; p < output; ++p) {
    const char *other = (const char *)buffers[p];
    if (other < high && low < other + sizes->of[p].bytes) return &door_arguments[p];
  }
  return NULL;
}

int DOOR_TVM_FFI(void *self, const door_any *args, int32_t count, door_any *result);
int DOOR_TVM_FFI(void *self, const door_any *args, int32_t count, door_any *result) {
  (void)self;
  void *buffers[DOOR_BUFFERS];
  int64_t numbers[DOOR_ARGUMENTS];
  const int64_t *shapes[DOOR_ARGUMENTS];
  door_sizes sizes;
  char text[DOOR_WORDS];
  size_t bytes = 0;
  int32_t gpu = DOOR_CPU_ONLY;
  if (count != DOOR_ARGUMENTS)
    return door_fail("TypeError", DOOR_NAME ": expected %d arguments, %d of them outputs at the end, got %d", DOOR_ARGUMENTS,
                DOOR_ARGUMENTS - DOOR_GIVEN, (int)count);
  for (int p = 0; p < DOOR_ARGUMENTS; ++p) {
    const door_argument *a = &door_arguments[p];
    if (a->scalar ? door_take_number(a, args + p, numbers + p, buffers + p) : door_take_tensor(a, args + p, buffers + p, &gpu)) return -1;
    shapes[p] = a->scalar ? NULL : door_tensor_of(args + p)->shape;
  }
  if (door_sized(shapes, &sizes, text, sizeof text)) return door_fail("ValueError", DOOR_NAME ": %s", text);
  door_give_dims(&sizes, buffers);
  for (int p = 0; p < DOOR_ARGUMENTS; ++p)
    if (!door_arguments[p].scalar && door_fit_tensor(p, args + p, &sizes)) return -1;
  for (int p = DOOR_GIVEN; p < DOOR_ARGUMENTS; ++p) {
    const door_argument *other = door_overlap(buffers, &sizes, p);
    if (other)
      return door_fail("ValueError", DOOR_NAME ": %s: expected memory of its own, got memory that overlaps %s",
                  door_arguments[p].name, other->name);
    bytes += sizes.of[p].bytes;
  }
  const door_argument *wrong = door_index_wrong(buffers, &sizes);
  if (wrong)
    return door_fail("IndexError", DOOR_NAME ": %s: an index is not in 0 ... %lld", wrong->name,
                     (long long)sizes.of[wrong - door_arguments].limit - 1);
  const tir_call call = {.size = sizeof call, .stream = gpu == DOOR_CPU_ONLY ? NULL : door_stream(gpu)};
  const int code = !bytes ? 0 : gpu == DOOR_CPU_ONLY ? door_call(NULL, buffers, &sizes) : door_kernel(&call, buffers);
  if (code) return door_fail("RuntimeError", "%s", door_said(code, text, sizeof text));
  result->type = DOOR_NONE;
  result->v.i = 0;
  return 0;
}

/* What the module says of the function: in words, and as TVM-FFI's schema of types. */
static int door_text(const char *text, size_t size, size_t room, door_any *result) {
  int (*make)(const door_bytes *, door_any *);
  void *found = dlsym(RTLD_DEFAULT, "TVMFFIStringFromByteArray");
  if (!found || size >= room) return door_fail("RuntimeError", DOOR_NAME ": there is no description");
  memcpy(&make, &found, sizeof make);
  const door_bytes bytes = {text, size};
  return make(&bytes, result);
}

enum { DOOR_ROOM = 256 + 192 * DOOR_ARGUMENTS };
#define DOOR_PASTE_(a, b) a##b
#define DOOR_PASTE(a, b) DOOR_PASTE_(a, b)
#define DOOR_DOC DOOR_PASTE(__tvm_ffi__doc_, DOOR_KERNEL)
#define DOOR_METADATA DOOR_PASTE(__tvm_ffi__metadata_, DOOR_KERNEL)

int DOOR_DOC(void *self, const door_any *args, int32_t count, door_any *result);
int DOOR_DOC(void *self, const door_any *args, int32_t count, door_any *result) {
  (void)self, (void)args, (void)count;
  char text[DOOR_ROOM], kind[256];
  size_t used = (size_t)snprintf(text, sizeof text, "%s(", DOOR_NAME);
  for (int p = 0; p < DOOR_ARGUMENTS && used < sizeof text; ++p)
    used += (size_t)snprintf(text + used, sizeof text - used, "%s%s: %s%s", p ? ", " : "", door_arguments[p].name,
                             p < DOOR_GIVEN ? "" : "written, ", door_expected(&door_arguments[p], kind, sizeof kind));
  if (used < sizeof text) used += (size_t)snprintf(text + used, sizeof text - used, ")");
  return door_text(text, used, sizeof text, result);
}

int DOOR_METADATA(void *self, const door_any *args, int32_t count, door_any *result);
int DOOR_METADATA(void *self, const door_any *args, int32_t count, door_any *result) {
  (void)self, (void)args, (void)count;
  char text[DOOR_ROOM];
  const char *begin = "{\"type_schema\": \"{\\\"type\\\":\\\"ffi.Function\\\",\\\"args\\\":[{\\\"type\\\":\\\"None\\\"}";
  size_t used = (size_t)snprintf(text, sizeof text, "%s", begin);
  for (int p = 0; p < DOOR_ARGUMENTS && used < sizeof text; ++p) {
    const door_argument *a = &door_arguments[p];
    const char *number = a->dl == DOOR_FLOATING ? "float" : a->dl == DOOR_BOOLEAN ? "bool" : "int";
    used += (size_t)snprintf(text + used, sizeof text - used, ",{\\\"type\\\":\\\"%s\\\"}", a->scalar ? number : "ffi.Tensor");
  }
  if (used < sizeof text) used += (size_t)snprintf(text + used, sizeof text - used, "]}\"}");
  return door_text(text, used, sizeof text, result);
}
