/* Custom operators of ONNX Runtime that call the functions declared above.

   ONNX Runtime gives a library its functions as an array that only ever grows behind, and takes operators as a structure
   that only ever grows behind; the places used here are those of version 16 (17 for its threads). No header of it is
   needed, and nothing of it is linked. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *tir_ort_status;      /* OrtStatus *, NULL where all is well */
typedef void *const *tir_ort_api;  /* OrtApi, as the array of function pointers that it is */
typedef struct {
  tir_ort_api (*api)(uint32_t version);
  const char *(*version)(void);
} tir_ort_base;

enum { TIR_ORT_FAIL = 1, TIR_ORT_INVALID_ARGUMENT = 2 };
enum { TIR_ORT_LEAST = 16, TIR_ORT_WITH_THREADS = 17 };

static tir_ort_api tir_ort;
static uint32_t tir_ort_version;
#define TIR_ORT(place, type) ((type)(uintptr_t)tir_ort[place])
#define TIR_ORT_CREATE_STATUS TIR_ORT(0, tir_ort_status (*)(int, const char *))
#define TIR_ORT_CREATE_DOMAIN TIR_ORT(26, tir_ort_status (*)(const char *, void **))
#define TIR_ORT_DOMAIN_ADD TIR_ORT(27, tir_ort_status (*)(void *, const void *))
#define TIR_ORT_ADD_DOMAIN TIR_ORT(28, tir_ort_status (*)(void *, void *))
#define TIR_ORT_DATA TIR_ORT(51, tir_ort_status (*)(void *, void **))
#define TIR_ORT_RANK TIR_ORT(61, tir_ort_status (*)(const void *, size_t *))
#define TIR_ORT_DIMS TIR_ORT(62, tir_ort_status (*)(const void *, int64_t *, size_t))
#define TIR_ORT_SHAPE TIR_ORT(65, tir_ort_status (*)(const void *, void **))
#define TIR_ORT_INPUT TIR_ORT(90, tir_ort_status (*)(const void *, size_t, const void **))
#define TIR_ORT_OUTPUT TIR_ORT(91, tir_ort_status (*)(void *, size_t, const int64_t *, size_t, void **))
#define TIR_ORT_RELEASE_SHAPE TIR_ORT(99, void (*)(void *))
#define TIR_ORT_CONSTANT_INPUT TIR_ORT(249, tir_ort_status (*)(const void *, size_t, int *, const void **))
#define TIR_ORT_PARALLEL_FOR \
  TIR_ORT(274, tir_ort_status (*)(const void *, void (*)(void *, size_t), size_t, size_t, void *))

/* An input or output. shape: in words; type: ONNX's number of it; size: of an element; align: what the address has to be a multiple of;
   limit: where its elements are indices, all are below this, else 0; once: what is packed once is made of it.
   In dims and limit -1 - k is number k of the extents that a call decides. */
typedef struct {
  const char *name, *shape;
  int type;
  size_t rank;
  const int64_t *dims;
  size_t size, align;
  int64_t limit;
  int once;
} tir_ort_value;

/* The same at the extents of a call. */
typedef struct {
  int64_t dims[TIR_ORT_MOST_DIMS], limit;
  size_t bytes;
} tir_ort_form;

typedef struct tir_ort_op tir_ort_op;
struct tir_ort_op {
  uint32_t version;
  void *(*create)(const tir_ort_op *, const void *, const void *); /* of versions before 16, as is compute */
  const char *(*name)(const tir_ort_op *);
  const char *(*provider)(const tir_ort_op *);
  int (*input_type)(const tir_ort_op *, size_t);
  size_t (*input_count)(const tir_ort_op *);
  int (*output_type)(const tir_ort_op *, size_t);
  size_t (*output_count)(const tir_ort_op *);
  void (*compute)(void *, void *);
  void (*destroy)(void *);
  int (*input_characteristic)(const tir_ort_op *, size_t);
  int (*output_characteristic)(const tir_ort_op *, size_t);
  int (*input_memory)(const tir_ort_op *, size_t);
  int (*input_fewest)(const tir_ort_op *);
  int (*input_alike)(const tir_ort_op *);
  int (*output_fewest)(const tir_ort_op *);
  int (*output_alike)(const tir_ort_op *);
  tir_ort_status (*create_2)(const tir_ort_op *, const void *, const void *, void **);
  tir_ort_status (*compute_2)(void *, void *);
  tir_ort_status (*infer)(const tir_ort_op *, void *);
  int (*first_version)(const tir_ort_op *);
  int (*last_version)(const tir_ort_op *);
  size_t (*in_place)(int **, int **);
  void (*in_place_release)(int *, int *);
  size_t (*alias)(int **, int **);
  void (*alias_release)(int *, int *);
  /* what follows is ours */
  const char *called;
  int (*run)(const tir_call *, void *const *);
  int (*pack)(const tir_call *, void *const *, void *); /* NULL where nothing is packed, as is packed */
  int (*packed)(const tir_call *, void *const *, const void *);
  const char *(*why)(void); /* or NULL: what the last error of this thread was, in words */
  int (*told)(const int64_t *const *, int64_t *, char *, size_t); /* NULL, as is extents, where all are constant */
  void (*extents)(const int64_t *, int64_t *);
  size_t packed_bytes, inputs, outputs, open; /* open: dims, which follow the outputs */
  const tir_ort_value *values; /* inputs, then outputs */
};

/* A node of a session. packed: what is made of its weights, NULL where they are no constants; memory: to free */
typedef struct {
  const tir_ort_op *op;
  void *packed, *memory;
} tir_ort_node;

static tir_ort_status tir_ort_refuse(int code, const char *op, const char *message) {
  char text[1280];
  snprintf(text, sizeof text, "%s: %s", op, message);
  return TIR_ORT_CREATE_STATUS(code, text);
}

static size_t tir_ort_write_shape(char *text, size_t room, const int64_t *dims, size_t rank) {
  size_t used = (size_t)snprintf(text, room, rank ? "" : "a number");
  for (size_t n = 0; n < rank && used < room; ++n)
    used += (size_t)snprintf(text + used, room - used, n ? "x%lld" : "%lld", (long long)dims[n]);
  return used;
}

static int64_t tir_ort_at(int64_t extent, const int64_t *extents) {
  return extent < 0 ? extents[-1 - extent] : extent;
}

static void tir_ort_formed(const tir_ort_value *about, const int64_t *extents, tir_ort_form *form) {
  form->limit = tir_ort_at(about->limit, extents), form->bytes = about->size;
  for (size_t n = 0; n < about->rank; ++n) {
    form->dims[n] = tir_ort_at(about->dims[n], extents);
    form->bytes *= (size_t)form->dims[n];
  }
}

/* Reads the shape of an input, and refuses another number of dimensions. A number may come as an array of one element. */
static tir_ort_status tir_ort_read(const tir_ort_op *op, const tir_ort_value *want, const void *value, int64_t *dims) {
  size_t rank = 0;
  void *shape;
  tir_ort_status status = TIR_ORT_SHAPE(value, &shape);
  if (status) return status;
  status = TIR_ORT_RANK(shape, &rank);
  if (!status && rank <= TIR_ORT_MOST_DIMS) status = TIR_ORT_DIMS(shape, dims, rank);
  TIR_ORT_RELEASE_SHAPE(shape);
  if (status || rank == want->rank || (want->rank == 0 && rank == 1 && dims[0] == 1)) return status;
  char got[160], text[480];
  if (rank <= TIR_ORT_MOST_DIMS) tir_ort_write_shape(got, sizeof got, dims, rank);
  else snprintf(got, sizeof got, "%zu dimensions", rank);
  snprintf(text, sizeof text, "%.100s: expected shape %.160s, got %s", want->name, want->shape, got);
  return tir_ort_refuse(TIR_ORT_INVALID_ARGUMENT, op->called, text);
}

/* Refuses an input of another shape. */
static tir_ort_status tir_ort_check(const tir_ort_op *op, const tir_ort_value *want, const tir_ort_form *form,
                                    const int64_t *dims) {
  if (!want->rank || memcmp(dims, form->dims, want->rank * sizeof *dims) == 0) return NULL;
  char expected[160], got[160], text[480];
  tir_ort_write_shape(expected, sizeof expected, form->dims, want->rank);
  tir_ort_write_shape(got, sizeof got, dims, want->rank);
  snprintf(text, sizeof text, "%.100s: expected shape %s, got %s", want->name, expected, got);
  return tir_ort_refuse(TIR_ORT_INVALID_ARGUMENT, op->called, text);
}

#define TIR_ORT_ALL(type)                                                        \
  for (size_t n = 0; n < form->bytes / sizeof(type); ++n)                        \
    if ((int64_t)((const type *)data)[n] < 0 || (int64_t)((const type *)data)[n] >= form->limit) return 0; \
  return 1;

/* Whether all elements are indices in range; an unsigned one that is no int64_t counts as negative. */
static int tir_ort_in_range(const tir_ort_value *about, const tir_ort_form *form, const void *data) {
  if (!about->limit) return 1;
  switch (about->type) {
    case 2: TIR_ORT_ALL(uint8_t)
    case 3: TIR_ORT_ALL(int8_t)
    case 4: TIR_ORT_ALL(uint16_t)
    case 5: TIR_ORT_ALL(int16_t)
    case 6: TIR_ORT_ALL(int32_t)
    case 7: TIR_ORT_ALL(int64_t)
    case 12: TIR_ORT_ALL(uint32_t)
    case 13: TIR_ORT_ALL(uint64_t)
  }
  return 0;
}

typedef struct {
  void *context;
  tir_ort_status status;
} tir_ort_pool;

static int tir_ort_parallel(void *pool, size_t blocks, void (*body)(void *, size_t), void *state) {
  tir_ort_pool *own = pool;
  own->status = TIR_ORT_PARALLEL_FOR(own->context, body, blocks, 0, state);
  return own->status != NULL;
}

/* Memory from a multiple of align on; *made is to be freed. */
static void *tir_ort_room(size_t bytes, size_t align, void **made) {
  *made = malloc(bytes + align);
  return *made ? (char *)*made + (align - (uintptr_t)*made % align) % align : NULL;
}

/* Where the caller's memory does not suit the program: memory of our own, in *made. */
static void *tir_ort_suited(void *data, const tir_ort_value *about, size_t bytes, void **made) {
  *made = NULL;
  return (uintptr_t)data % about->align ? tir_ort_room(bytes, about->align, made) : data;
}

static tir_ort_status tir_ort_failed(const tir_ort_op *op, int code) {
  char text[64];
  snprintf(text, sizeof text, "the program returned error %d", code);
  return tir_ort_refuse(TIR_ORT_FAIL, op->called, op->why ? op->why() : text);
}

static int tir_ort_serial(void *pool, size_t blocks, void (*body)(void *, size_t), void *state) {
  (void)pool;
  for (size_t n = 0; n < blocks; ++n) body(state, n);
  return 0;
}

/* Packs the weights of a node where the model has them as constants. */
static tir_ort_status tir_ort_pack(tir_ort_node *node, const void *info) {
  const tir_ort_op *op = node->op;
  void *buffers[TIR_ORT_MOST_VALUES] = {NULL}, *made[TIR_ORT_MOST_VALUES] = {NULL};
  tir_ort_status status = NULL;
  int constant = 1;
  for (size_t n = 0; n < op->inputs && constant && !status; ++n) {
    const tir_ort_value *about = op->values + n;
    int64_t dims[TIR_ORT_MOST_DIMS] = {0};
    tir_ort_form form;
    const void *value = NULL;
    void *data;
    if (!about->once) continue;
    status = TIR_ORT_CONSTANT_INPUT(info, n, &constant, &value);
    for (size_t d = 0; d < about->rank; ++d) constant &= about->dims[d] >= 0; /* else packed in each call */
    if (status || !constant) break;
    tir_ort_formed(about, NULL, &form);
    status = tir_ort_read(op, about, value, dims);
    if (!status) status = tir_ort_check(op, about, &form, dims);
    if (!status) status = TIR_ORT_DATA((void *)(uintptr_t)value, &data);
    if (status) break;
    buffers[n] = tir_ort_suited(data, about, form.bytes, &made[n]);
    if (!buffers[n]) status = tir_ort_refuse(TIR_ORT_FAIL, op->called, "out of memory");
    else if (made[n]) memcpy(buffers[n], data, form.bytes);
  }
  if (!status && constant) {
    const tir_call call = {.size = sizeof call, .parallel_for = tir_ort_serial};
    node->packed = tir_ort_room(op->packed_bytes, 64, &node->memory);
    const int code = node->packed ? op->pack(&call, buffers, node->packed) : 0;
    if (!node->packed) status = tir_ort_refuse(TIR_ORT_FAIL, op->called, "out of memory");
    else if (code) status = tir_ort_failed(op, code);
  }
  for (size_t n = 0; n < op->inputs; ++n) free(made[n]);
  return status;
}

/* The inputs of a call, and what all arguments are at its extents. */
static tir_ort_status tir_ort_inputs(const tir_ort_op *op, void *context, void **values, int64_t *open,
                                     tir_ort_form *forms) {
  int64_t dims[TIR_ORT_MOST_VALUES][TIR_ORT_MOST_DIMS] = {{0}}, extents[TIR_ORT_MOST_EXTENTS] = {0};
  const int64_t *shapes[TIR_ORT_MOST_VALUES];
  tir_ort_status status = NULL;
  for (size_t n = 0; n < op->inputs && !status; ++n) {
    const void *read = NULL;
    status = TIR_ORT_INPUT(context, n, &read);
    values[n] = (void *)(uintptr_t)read, shapes[n] = dims[n];
    if (!status) status = tir_ort_read(op, op->values + n, read, dims[n]);
  }
  if (!status && op->told) {
    char why[320];
    if (op->told(shapes, open, why, sizeof why)) return tir_ort_refuse(TIR_ORT_INVALID_ARGUMENT, op->called, why);
    op->extents(open, extents);
  }
  for (size_t n = 0; n < op->inputs + op->outputs && !status; ++n) {
    tir_ort_formed(op->values + n, extents, forms + n);
    if (n < op->inputs) status = tir_ort_check(op, op->values + n, forms + n, dims[n]);
  }
  return status;
}

static tir_ort_status tir_ort_compute(void *kernel, void *context) {
  const tir_ort_node *node = kernel;
  const tir_ort_op *op = node->op;
  void *buffers[TIR_ORT_MOST_VALUES + TIR_ORT_MOST_OPEN], *given[TIR_ORT_MOST_VALUES];
  void *values[TIR_ORT_MOST_VALUES] = {NULL}, *made[TIR_ORT_MOST_VALUES] = {NULL};
  int64_t open[TIR_ORT_MOST_OPEN];
  tir_ort_form forms[TIR_ORT_MOST_VALUES];
  const size_t count = op->inputs + op->outputs;
  tir_ort_status status = tir_ort_inputs(op, context, values, open, forms);
  for (size_t n = 0; n < count && !status; ++n) {
    const tir_ort_value *about = op->values + n;
    const int written = n >= op->inputs;
    if (written) status = TIR_ORT_OUTPUT(context, n - op->inputs, forms[n].dims, about->rank, &values[n]);
    if (!status) status = TIR_ORT_DATA(values[n], &given[n]);
    if (status) break;
    buffers[n] = tir_ort_suited(given[n], about, forms[n].bytes, &made[n]);
    if (!buffers[n]) status = tir_ort_refuse(TIR_ORT_FAIL, op->called, "out of memory");
    else if (made[n] && !written) memcpy(buffers[n], given[n], forms[n].bytes);
    if (!status && !written && !tir_ort_in_range(about, &forms[n], buffers[n])) {
      char text[200];
      snprintf(text, sizeof text, "%.100s: an index is not in 0 ... %lld", about->name, (long long)forms[n].limit - 1);
      status = tir_ort_refuse(TIR_ORT_INVALID_ARGUMENT, op->called, text);
    }
  }
  for (size_t n = 0; n < op->open; ++n) buffers[count + n] = &open[n];
  if (!status) {
    tir_ort_pool pool = {context, NULL};
    tir_call call = {.size = sizeof call};
    if (tir_ort_version >= TIR_ORT_WITH_THREADS) call.parallel_for = tir_ort_parallel, call.pool = &pool;
    const int code = node->packed ? op->packed(&call, buffers, node->packed) : op->run(&call, buffers);
    status = pool.status;
    if (code && !status) status = tir_ort_failed(op, code);
  }
  for (size_t n = 0; n < count; ++n) {
    if (made[n] && n >= op->inputs && !status) memcpy(given[n], buffers[n], forms[n].bytes);
    free(made[n]);
  }
  return status;
}

static void tir_ort_destroy(void *kernel) {
  tir_ort_node *node = kernel;
  free(node->memory);
  free(node);
}

static tir_ort_status tir_ort_create(const tir_ort_op *op, const void *api, const void *info, void **kernel) {
  (void)api;
  tir_ort_node *node = calloc(1, sizeof *node);
  if (!node) return tir_ort_refuse(TIR_ORT_FAIL, op->called, "out of memory");
  node->op = op;
  tir_ort_status status = op->pack ? tir_ort_pack(node, info) : NULL;
  if (status) tir_ort_destroy(node);
  else *kernel = node;
  return status;
}

static const char *tir_ort_name(const tir_ort_op *op) { return op->called; }
static const char *tir_ort_provider(const tir_ort_op *op) { return (void)op, (const char *)NULL; }
static int tir_ort_input_type(const tir_ort_op *op, size_t n) { return op->values[n].type; }
static size_t tir_ort_input_count(const tir_ort_op *op) { return op->inputs; }
static int tir_ort_output_type(const tir_ort_op *op, size_t n) { return op->values[op->inputs + n].type; }
static size_t tir_ort_output_count(const tir_ort_op *op) { return op->outputs; }
static int tir_ort_zero_of(const tir_ort_op *op, size_t n) { return (void)op, (void)n, 0; }
static int tir_ort_one(const tir_ort_op *op) { return (void)op, 1; }
static int tir_ort_last(const tir_ort_op *op) { return (void)op, INT32_MAX; }
static size_t tir_ort_none(int **a, int **b) { return *a = *b = NULL, (size_t)0; }
static void tir_ort_release(int *a, int *b) { (void)a, (void)b; }

#define TIR_ORT_OP(NAME, FUNCTION, WHY, TOLD, EXTENTS, OPEN, PACK, PACKED, BYTES, INPUTS, OUTPUTS, VALUES) {         \
    .name = tir_ort_name, .provider = tir_ort_provider, .input_type = tir_ort_input_type,                            \
    .input_count = tir_ort_input_count, .output_type = tir_ort_output_type, .output_count = tir_ort_output_count,    \
    .destroy = tir_ort_destroy, .input_characteristic = tir_ort_zero_of, .output_characteristic = tir_ort_zero_of,   \
    .input_memory = tir_ort_zero_of, .input_fewest = tir_ort_one, .input_alike = tir_ort_one,                        \
    .output_fewest = tir_ort_one, .output_alike = tir_ort_one, .create_2 = tir_ort_create,                           \
    .compute_2 = tir_ort_compute, .first_version = tir_ort_one, .last_version = tir_ort_last,                        \
    .in_place = tir_ort_none, .in_place_release = tir_ort_release, .alias = tir_ort_none,                            \
    .alias_release = tir_ort_release, .called = NAME, .run = FUNCTION, .why = WHY, .pack = PACK, .packed = PACKED,   \
    .told = TOLD, .extents = EXTENTS, .open = OPEN, .packed_bytes = BYTES, .inputs = INPUTS, .outputs = OUTPUTS, .values = VALUES}

static tir_ort_status tir_ort_register(void *options, const tir_ort_base *base, const char *domain, tir_ort_op *ops,
                                       size_t count) {
  const char *minor = strchr(base->version(), '.'); /* to ask for more than there is would print a line */
  uint32_t version = minor && atoi(minor + 1) < TIR_ORT_WITH_THREADS ? TIR_ORT_LEAST : TIR_ORT_WITH_THREADS;
  tir_ort_api found;
  void *made;
  while (!(found = base->api(version)) && version > TIR_ORT_LEAST) --version;
  if (!found) {
    tir_ort = base->api(1);
    return TIR_ORT_CREATE_STATUS(TIR_ORT_FAIL, "these operators need ONNX Runtime 1.16 or newer");
  }
  tir_ort = found;
  tir_ort_version = version;
  tir_ort_status status = TIR_ORT_CREATE_DOMAIN(domain, &made);
  for (size_t n = 0; n < count && !status; ++n) {
    ops[n].version = version;
    status = TIR_ORT_DOMAIN_ADD(made, ops + n);
  }
  return status ? status : TIR_ORT_ADD_DOMAIN(options, made);
}
