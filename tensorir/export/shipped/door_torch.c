/* Kernels of C as kernels of PyTorch's dispatcher, without PyTorch's headers: its C functions (torch 2.10 and later) are
   found at run time. torch_operator.py fills in a `door` for each operator; what one does not say, it refuses. A
   dispatcher's kernel is a function and nothing else, so there is one for each of SLOTS doors. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct tir_call {
  size_t size;
  void *stream;
  int (*parallel_for)(void *pool, size_t blocks, void (*body)(void *state, size_t block), void *state);
  void *pool;
  void *workspace;
  int threads;
} tir_call;

enum { MOST = 64, DIMS = 16, SLOTS = 64 }; /* torch_c.py has them as well */
enum { TENSOR, FLOAT64, FLOAT32, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, BOOL };

typedef struct {
  const char *name;
  const char *type;
  int32_t number;      /* TENSOR, or what a number is passed as */
  int32_t dtype;       /* PyTorch's */
  int32_t index;       /* of an array of indices: what its elements are, else TENSOR */
  int32_t dims;
  int64_t align;
  int64_t limit;       /* of indices */
  const char *into;    /* what they index */
  int64_t shape[DIMS]; /* here and in limit: -1 - k for number k of the extents that a call decides */
} argument;

typedef struct {
  const char *name;
  int (*kernel)(const tir_call *, void *const *);
  int (*rest)(const tir_call *, void *const *, const void *); /* or NULL: it runs on what was packed, given last */
  const char *(*why)(void); /* or NULL: what the last error of this thread was, in words */
  int (*told)(const int64_t *const *shapes, int64_t *dims, char *why, size_t room); /* or NULL: all extents are constant */
  void (*extents)(const int64_t *dims, int64_t *extents);
  int32_t given, results, dims;
  argument arguments[MOST]; /* what is given, then results */
} door;

typedef struct tensor tensor;
typedef uint64_t item; /* a tensor's handle, a double or an integer */

#define FUNCTIONS(F)                                                                                                   \
  F(int32_t, aoti_torch_get_dtype, (tensor *, int32_t *))                                                              \
  F(int32_t, aoti_torch_get_device_type, (tensor *, int32_t *))                                                        \
  F(int32_t, aoti_torch_get_dim, (tensor *, int64_t *))                                                                \
  F(int32_t, aoti_torch_get_sizes, (tensor *, int64_t **))                                                             \
  F(int32_t, aoti_torch_get_strides, (tensor *, int64_t **))                                                           \
  F(int32_t, aoti_torch_get_data_ptr, (tensor *, void **))                                                             \
  F(int32_t, aoti_torch_delete_tensor_object, (tensor *))                                                              \
  F(int32_t, aoti_torch_copy_, (tensor *, tensor *, int32_t))                                                          \
  F(int32_t, aoti_torch_empty_strided,                                                                                 \
    (int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, tensor **))                                 \
  F(void, aoti_torch_check, (bool, const char *, const char *, uint32_t, const char *))                                \
  F(int32_t, aoti_torch_library_init_impl, (const char *, const char *, const char *, uint32_t, void **))              \
  F(int32_t, aoti_torch_delete_library_object, (void *))                                                               \
  F(int32_t, torch_library_impl, (void *, const char *, void (*)(item *, uint64_t, uint64_t), uint64_t))               \
  F(int32_t, torch_parallel_for, (int64_t, int64_t, int64_t, void (*)(int64_t, int64_t, void *), void *))              \
  F(int32_t, torch_get_num_threads, (uint32_t *))

#define DECLARED(result, name, arguments) result(*name) arguments;
static struct { FUNCTIONS(DECLARED) } torch;

static const door *doors[SLOTS];

/* The last words of a call: an exception goes through this file's frames (-fexceptions). */
static void fail(tensor **held, int count, const char *words) {
  char kept[512];
  snprintf(kept, sizeof kept, "%s", words);
  for (int n = 0; n < count; n++)
    if (held[n]) torch.aoti_torch_delete_tensor_object(held[n]);
  torch.aoti_torch_check(false, "kernel", __FILE__, __LINE__, kept);
}

/* What an argument is at the extents of a call. */
typedef struct {
  int64_t count, limit, shape[DIMS], strides[DIMS];
} form;

static int64_t at(int64_t extent, const int64_t *extents) { return extent < 0 ? extents[-1 - extent] : extent; }

static void formed(const argument *a, const int64_t *extents, form *f) {
  f->count = 1, f->limit = at(a->limit, extents);
  for (int n = a->dims; n-- > 0; f->count *= f->shape[n]) f->shape[n] = at(a->shape[n], extents), f->strides[n] = f->count;
}

/* What is wrong with a tensor, whatever its extents are. */
static const char *unlike(const argument *a, tensor *t, char *words, size_t room) {
  int32_t dtype = -1, device = -1;
  int64_t dims = -1;
  torch.aoti_torch_get_dtype(t, &dtype);
  torch.aoti_torch_get_device_type(t, &device);
  torch.aoti_torch_get_dim(t, &dims);
  if (dtype == a->dtype && device == 0 && dims == a->dims) return NULL;
  if (dtype != a->dtype)
    snprintf(words, room, "%s: expected dtype %s, got another", a->name, a->type);
  else if (device)
    snprintf(words, room, "%s: expected a tensor on cpu, got one elsewhere", a->name);
  else
    snprintf(words, room, "%s: expected %d dimensions, got %lld", a->name, (int)a->dims, (long long)dims);
  return words;
}

static const char *misfit(const argument *a, const form *f, tensor *t, char *words, size_t room) {
  int64_t *sizes = NULL;
  torch.aoti_torch_get_sizes(t, &sizes);
  bool same = true;
  for (int n = 0; same && n < a->dims; n++) same = sizes[n] == f->shape[n];
  if (same) return NULL;
  size_t used = (size_t)snprintf(words, room, "%s: expected shape (", a->name);
  for (int n = 0; n < a->dims && used < room; n++)
    used += (size_t)snprintf(words + used, room - used, n ? ", %lld" : "%lld", (long long)f->shape[n]);
  if (used < room) snprintf(words + used, room - used, a->dims == 1 ? ",), got another" : "), got another");
  return words;
}

/* Whether the tensor lies as kernels need it. */
static bool suits(const argument *a, const form *f, tensor *t, void *data) {
  int64_t *strides = NULL;
  if ((uintptr_t)data % (uintptr_t)a->align) return false;
  torch.aoti_torch_get_strides(t, &strides);
  for (int n = 0; n < a->dims; n++)
    if (strides[n] != f->strides[n] && f->shape[n] != 1) return false;
  return true;
}

#define OUTSIDE(type)                                                                                                  \
  for (int64_t n = 0; n < count; n++)                                                                                  \
    if ((int64_t)((const type *)data)[n] < 0 || (int64_t)((const type *)data)[n] >= limit) return n;                   \
  break;

/* The first index out of range; -1 where there is none. */
static int64_t outside(int32_t kind, const void *data, int64_t count, int64_t limit) {
  switch (kind) {
    case INT8: OUTSIDE(int8_t)
    case INT16: OUTSIDE(int16_t)
    case INT32: OUTSIDE(int32_t)
    case INT64: OUTSIDE(int64_t)
    case UINT8: OUTSIDE(uint8_t)
    case UINT16: OUTSIDE(uint16_t)
    case UINT32: OUTSIDE(uint32_t)
    case UINT64: OUTSIDE(uint64_t)
  }
  return -1;
}

/* A number of PyTorch's (a double or an int64) in memory as kernels take it; false where it does not fit. */
static bool number(int32_t kind, item given, void *place) {
  double real;
  int64_t whole;
  memcpy(&real, &given, 8);
  memcpy(&whole, &given, 8);
  int64_t low = 0, high = INT64_MAX;
  switch (kind) {
    case FLOAT64: memcpy(place, &real, 8); return true;
    case FLOAT32: { float f = (float)real; memcpy(place, &f, 4); return true; }
    case BOOL: *(uint8_t *)place = (uint8_t)(given & 1); return true;
    case INT8: low = INT8_MIN, high = INT8_MAX; break;
    case INT16: low = INT16_MIN, high = INT16_MAX; break;
    case INT32: low = INT32_MIN, high = INT32_MAX; break;
    case INT64: low = INT64_MIN; break;
    case UINT8: high = UINT8_MAX; break;
    case UINT16: high = UINT16_MAX; break;
    case UINT32: high = UINT32_MAX; break;
  }
  memcpy(place, &whole, 8); /* little-endian: its low bytes are the narrower number */
  return whole >= low && whole <= high;
}

typedef struct {
  void (*body)(void *, size_t);
  void *state;
} blocks;

static void several(int64_t begin, int64_t end, void *given) {
  const blocks *b = given;
  for (int64_t n = begin; n < end; n++) b->body(b->state, (size_t)n);
}

/* PyTorch's threads are not there in the child of a fork, and waiting for them never ends. */
static volatile bool forked;
static void in_child(void) { forked = true; }

static int parallel_for(void *pool, size_t count, void (*body)(void *, size_t), void *state) {
  blocks b = {body, state};
  (void)pool;
  return torch.torch_parallel_for(0, (int64_t)count, 1, several, &b);
}

/* The extents that tensors have where shapes are open; what is wrong with them, or NULL. */
static const char *sized(const door *d, tensor *const *held, int64_t *dims, int64_t *extents, char *words, size_t room) {
  const int64_t *shapes[MOST] = {0};
  for (int n = 0; n < d->given; n++) {
    int64_t *sizes = NULL;
    if (held[n]) torch.aoti_torch_get_sizes(held[n], &sizes);
    shapes[n] = sizes;
  }
  if (d->told(shapes, dims, words, room)) return words;
  d->extents(dims, extents);
  return NULL;
}

static void run(const door *d, item *stack) {
  tensor *held[MOST] = {0}; /* what is given, or a copy of it; then results */
  void *buffers[MOST];
  item numbers[MOST];
  int64_t dims[MOST], extents[MOST];
  form f;
  char words[512];
  for (int n = 0; n < d->given; n++)
    if (!d->arguments[n].number) memcpy(&held[n], &stack[n], sizeof held[n]);
  for (int n = 0; n < d->given; n++)
    if (held[n] && unlike(&d->arguments[n], held[n], words, sizeof words)) fail(held, d->given, words);
  if (d->told && sized(d, held, dims, extents, words, sizeof words)) fail(held, d->given, words);
  for (int n = 0; n < d->given; n++) {
    const argument *a = &d->arguments[n];
    if (a->number) {
      buffers[n] = &numbers[n];
      if (!number(a->number, stack[n], &numbers[n])) {
        snprintf(words, sizeof words, "%s: expected a %s, got %lld", a->name, a->type, (long long)stack[n]);
        fail(held, d->given, words);
      }
      continue;
    }
    formed(a, extents, &f);
    if (misfit(a, &f, held[n], words, sizeof words)) fail(held, d->given, words);
    torch.aoti_torch_get_data_ptr(held[n], &buffers[n]);
    if (!buffers[n] && f.count) fail(held, d->given, "a tensor without memory (fake or meta) reached the kernel");
    if (!suits(a, &f, held[n], buffers[n])) {
      tensor *copy = NULL;
      if (torch.aoti_torch_empty_strided(a->dims, f.shape, f.strides, a->dtype, 0, -1, &copy) ||
          torch.aoti_torch_copy_(copy, held[n], 0))
        fail(held, d->given, "no memory for a contiguous copy");
      torch.aoti_torch_delete_tensor_object(held[n]);
      held[n] = copy;
      torch.aoti_torch_get_data_ptr(copy, &buffers[n]);
    }
    if (a->index) {
      int64_t at = outside(a->index, buffers[n], f.count, f.limit);
      if (at >= 0) {
        snprintf(words, sizeof words, "%s: expected indices from 0 to %lld (they index %s), element %lld is another",
                 a->name, (long long)f.limit - 1, a->into, (long long)at);
        fail(held, d->given, words);
      }
    }
  }
  bool empty = true;
  for (int n = d->given; n < d->given + d->results; n++) {
    const argument *a = &d->arguments[n];
    formed(a, extents, &f);
    if (torch.aoti_torch_empty_strided(a->dims, f.shape, f.strides, a->dtype, 0, -1, &held[n]))
      fail(held, n, "no memory for the result");
    torch.aoti_torch_get_data_ptr(held[n], &buffers[n]);
    empty &= !f.count;
  }
  for (int n = 0; n < d->dims; n++) buffers[d->given + d->results + n] = &dims[n];
  uint32_t threads = 1;
  torch.torch_get_num_threads(&threads);
  tir_call call = {sizeof call, NULL, threads > 1 && !forked ? parallel_for : NULL, NULL, NULL, (int)threads};
  int code = 0;
  if (d->rest) {
    const void *packed = buffers[d->given - 1];
    memmove(&buffers[d->given - 1], &buffers[d->given], sizeof *buffers * (size_t)(d->results + d->dims));
    code = empty ? 0 : d->rest(&call, buffers, packed);
  } else if (!empty) {
    code = d->kernel(&call, buffers);
  }
  if (code) {
    if (d->why)
      snprintf(words, sizeof words, "%s: %s", d->name, d->why());
    else
      snprintf(words, sizeof words, "%s: the kernel returned error %d", d->name, code);
    fail(held, d->given + d->results, words);
  }
  for (int n = 0; n < d->given; n++)
    if (held[n]) torch.aoti_torch_delete_tensor_object(held[n]);
  for (int n = 0; n < d->results; n++) {
    stack[n] = 0;
    memcpy(&stack[n], &held[d->given + n], sizeof(tensor *));
  }
}

#define SLOT(a, b)                                                                                                     \
  static void slot_##a##b(item *stack, uint64_t given, uint64_t results) {                                             \
    (void)given, (void)results;                                                                                        \
    run(doors[a * 8 + b], stack);                                                                                      \
  }
#define NAME(a, b) slot_##a##b,
#define EIGHT(F, a) F(a, 0) F(a, 1) F(a, 2) F(a, 3) F(a, 4) F(a, 5) F(a, 6) F(a, 7)
#define EVERY(F) EIGHT(F, 0) EIGHT(F, 1) EIGHT(F, 2) EIGHT(F, 3) EIGHT(F, 4) EIGHT(F, 5) EIGHT(F, 6) EIGHT(F, 7)
EVERY(SLOT)
static void (*const slots[SLOTS])(item *, uint64_t, uint64_t) = {EVERY(NAME)};

/* Find PyTorch's functions in the library of this handle; the name of one that it lacks, NULL where it has all. */
const char *tir_door_begin(void *library) {
#define FOUND(result, name, arguments)                                                                                 \
  *(void **)&torch.name = dlsym(library, #name);                                                                       \
  if (!torch.name) return #name;
  FUNCTIONS(FOUND)
  return pthread_atfork(NULL, NULL, in_child) ? "memory for a handler of forks" : NULL;
}

size_t tir_door_sizes(int which) {
  const size_t sizes[] = {sizeof(door), sizeof(argument), SLOTS};
  return sizes[which];
}

/* Compute by this door from now on; it lives as long as the process. */
void tir_door_set(int slot, const door *d) { __atomic_store_n(&doors[slot], d, __ATOMIC_RELEASE); }

/* Register a slot as the CPU kernel of namespace::name; the library to give to tir_door_close, NULL on failure. */
void *tir_door_open(int slot, const char *space, const char *name, uint64_t version) {
  void *library = NULL;
  if (torch.aoti_torch_library_init_impl(space, "CPU", __FILE__, __LINE__, &library)) return NULL;
  if (torch.torch_library_impl(library, name, slots[slot], version)) {
    torch.aoti_torch_delete_library_object(library);
    return NULL;
  }
  return library;
}

void tir_door_close(void *library) { torch.aoti_torch_delete_library_object(library); }
