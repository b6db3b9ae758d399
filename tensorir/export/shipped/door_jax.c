/* The kernel as a target of XLA's foreign function interface, version 0.1, of which newer ones are supersets: jaxlib
   0.5.0 and later take it. Types are declared here as the interface defines them (64-bit machines): no header is needed.

   Arrays may have leading dimensions in front of the kernel's, as jax.vmap gives them with "expand_dims": those of an
   input are the outputs' or 1. The kernel runs once for each. Its blocks, or items of a long batch, are run by XLA's own
   threads. */
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>
#include "door.h"

enum { DOOR_METADATA = 1, DOOR_EXECUTE = 3, DOOR_INVALID_ARGUMENT = 3, DOOR_INTERNAL = 13, DOOR_LEADING = 16 };
enum { DOOR_FIRST_MAJOR = 0, DOOR_FIRST_MINOR = 1 };
enum { DOOR_WRONG_INDEX = 1 << 16 }; /* above all codes of kernels */
static const double DOOR_WORTH_THREADS = 50e-6; /* seconds of work that pay for waking others */

typedef struct door_extension { size_t size; int32_t type; struct door_extension *next; } door_extension;
typedef struct { size_t size; door_extension *more; int32_t major, minor; } door_version;
typedef struct { size_t size; door_version api; uint32_t traits; } door_metadata;
typedef struct { door_extension base; door_metadata *about; } door_metadata_extension;
typedef struct { size_t size; door_extension *more; int32_t dtype; void *data; int64_t rank; int64_t *dims; } door_buffer;
typedef struct { size_t size; door_extension *more; int64_t count; int32_t *types; door_buffer **items; } door_list;
typedef struct { size_t size; door_extension *more; const char *message; int32_t code; } door_error_args;
typedef struct { size_t size; door_extension *more; void *error; } door_destroy_args;
typedef struct { size_t size; door_extension *more; void *context; void (*task)(void *); void *data; } door_schedule_args;
typedef struct { size_t size; door_extension *more; void *context; int64_t *count; } door_threads_args;
typedef struct {
  size_t size;
  door_extension *more;
  door_version api;
  void *internal;
  void *(*error_create)(door_error_args *);
  void *error_message;
  void (*error_destroy)(door_destroy_args *);
  void *handler_register, *stream_get, *type_register, *context_get, *state_set, *state_get, *allocate, *deallocate;
  void *(*schedule)(door_schedule_args *);
  void *(*count_threads)(door_threads_args *);
} door_interface;
typedef struct { size_t size; door_extension *more; const door_interface *api; void *context; int32_t stage; door_list args, rets; } door_frame;

static void *door_fail(const door_frame *f, int32_t code, const char *format, ...) {
  char text[DOOR_WORDS];
  va_list given;
  va_start(given, format);
  vsnprintf(text, sizeof text, format, given);
  va_end(given);
  door_error_args e = {offsetof(door_error_args, code) + sizeof e.code, NULL, text, code};
  return f->api->error_create(&e);
}

/* A kernel's blocks, taken by whoever comes: the caller, which therefore waits for running blocks alone and never for
   XLA's queue, and tasks in that queue. What is left of it is freed by the last of them. */
typedef struct {
  void (*body)(void *state, size_t block);
  void *state;
  size_t blocks;
  atomic_size_t next, done;
  atomic_int holders;
} door_work;

static void door_run_blocks(door_work *w) {
  for (size_t n; (n = atomic_fetch_add(&w->next, 1)) < w->blocks; atomic_fetch_add(&w->done, 1)) w->body(w->state, n);
}

static void door_let_go(door_work *w, int holders) {
  if (atomic_fetch_sub(&w->holders, holders) == holders) free(w);
}

static void door_task(void *data) {
  door_run_blocks((door_work *)data);
  door_let_go((door_work *)data, 1);
}

static void door_destroy(const door_frame *f, void *error) {
  door_destroy_args e = {sizeof e, NULL, error};
  f->api->error_destroy(&e);
}

static int64_t door_threads_of(const door_frame *f) {
  int64_t count = 1;
  door_threads_args e = {sizeof e, NULL, f->context, &count};
  void *error = f->api->count_threads(&e);
  if (error) door_destroy(f, error);
  return error ? 1 : count;
}

static int door_parallel_for(void *pool, size_t blocks, void (*body)(void *state, size_t block), void *state) {
  const door_frame *f = (const door_frame *)pool;
  const int64_t threads = blocks < 2 ? 1 : door_threads_of(f);
  door_work *w = threads < 2 ? NULL : (door_work *)malloc(sizeof *w);
  if (!w) {
    for (size_t n = 0; n < blocks; ++n) body(state, n);
    return 0;
  }
  const int helpers = (int)((size_t)threads < blocks ? threads : (int64_t)blocks) - 1;
  w->body = body, w->state = state, w->blocks = blocks;
  atomic_init(&w->next, 0), atomic_init(&w->done, 0), atomic_init(&w->holders, helpers + 1);
  int refused = 0;
  for (int n = 0; n < helpers; ++n) {
    door_schedule_args e = {sizeof e, NULL, f->context, door_task, w};
    void *error = f->api->schedule(&e);
    if (error) door_destroy(f, error), ++refused;
  }
  door_run_blocks(w);
  while (atomic_load(&w->done) < blocks) sched_yield();
  door_let_go(w, refused + 1);
  return 0;
}

/* What is wrong with the type, the rank or the leading dimensions of an array, or NULL. leading: how many are in front of
   the kernel's. sizes: with its own extents as well; NULL: these are not known yet. */
static void *door_misfit(const door_frame *f, int p, const door_buffer *b, int64_t leading, const int64_t *extents,
                         const door_sizes *sizes) {
  char text[256];
  const door_argument *a = &door_arguments[p];
  int fits = b->dtype == a->xla && b->rank == a->rank + leading;
  for (int64_t n = 0; fits && n < leading; ++n) fits = b->dims[n] == extents[n] || (b->dims[n] == 1 && p < DOOR_GIVEN);
  for (int64_t n = 0; fits && sizes && n < a->rank; ++n) fits = b->dims[leading + n] == sizes->of[p].shape[n];
  if (fits) return NULL;
  return door_fail(f, DOOR_INVALID_ARGUMENT, DOOR_NAME ": %s: expected %s, got an array of type %d and rank %lld", a->name,
              door_expected(a, text, sizeof text), (int)b->dtype, (long long)b->rank);
}

/* Run the kernel: 0, an error of door_call, or DOOR_WRONG_INDEX + the argument's number. */
static int door_compute(const tir_call *call, void *const *buffers, const door_sizes *sizes) {
  const door_argument *wrong = door_index_wrong(buffers, sizes);
  return wrong ? DOOR_WRONG_INDEX + (int)(wrong - door_arguments) : door_call(call, buffers, sizes);
}

/* Items of a batch: count of them from the first one on, in so many shares. failed, words: the first error of any. */
typedef struct {
  const door_buffer *const *arrays;
  door_sizes *sizes;
  int64_t leading;
  const int64_t *extents;
  size_t first, count, shares;
  atomic_int failed;
  char words[DOOR_WORDS];
} door_batch;

/* What went wrong, or NULL. */
static void *door_explain(const door_frame *f, door_batch *b) {
  const int code = atomic_load(&b->failed);
  if (!code) return NULL;
  if (code < DOOR_WRONG_INDEX) return door_fail(f, DOOR_INTERNAL, "%s", b->words);
  const door_argument *wrong = &door_arguments[code - DOOR_WRONG_INDEX];
  return door_fail(f, DOOR_INVALID_ARGUMENT, DOOR_NAME ": %s: an index is not in 0 ... %lld", wrong->name,
                   (long long)b->sizes->of[wrong - door_arguments].limit - 1);
}

/* The words of an error are its thread's, which asks for them here. */
static int door_noted(door_batch *b, int code) {
  int none = 0;
  if (!code || !atomic_compare_exchange_strong(&b->failed, &none, code) || code >= DOOR_WRONG_INDEX) return code;
  const char *said = door_said(code, b->words, sizeof b->words);
  if (said != b->words) snprintf(b->words, sizeof b->words, "%s", said);
  return code;
}

static int door_item(door_batch *b, size_t item, const tir_call *call) {
  void *buffers[DOOR_BUFFERS];
  int64_t at[DOOR_LEADING];
  for (int64_t n = b->leading - 1; n >= 0; item /= (size_t)b->extents[n--]) at[n] = (int64_t)(item % (size_t)b->extents[n]);
  for (int p = 0; p < DOOR_ARGUMENTS; ++p) {
    size_t place = 0;
    for (int64_t n = 0; n < b->leading; ++n) {
      const int64_t extent = b->arrays[p]->dims[n];
      place = place * (size_t)extent + (extent == 1 ? 0 : (size_t)at[n]);
    }
    buffers[p] = (char *)b->arrays[p]->data + place * b->sizes->of[p].bytes;
  }
  door_give_dims(b->sizes, buffers);
  return door_noted(b, door_compute(call, buffers, b->sizes));
}

static void door_share(void *state, size_t share) {
  door_batch *b = (door_batch *)state;
  const tir_call alone = {.size = sizeof alone, .threads = 1};
  const size_t end = b->count * (share + 1) / b->shares;
  for (size_t n = b->count * share / b->shares; n < end && !atomic_load(&b->failed); ++n) door_item(b, b->first + n, &alone);
}

static double door_seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* All items: the first one on all threads; the others each on one where these are enough for it and take long enough. */
static void door_items(const door_frame *f, door_batch *b) {
  const tir_call together = {.size = sizeof together, .parallel_for = door_parallel_for, .pool = (void *)(uintptr_t)f};
  const double began = b->count > 1 ? door_seconds() : 0;
  if (door_item(b, 0, &together) || b->count < 2) return;
  const double left = (door_seconds() - began) * (double)(b->count - 1);
  const size_t threads = left > DOOR_WORTH_THREADS ? (size_t)door_threads_of(f) : 1;
  b->first = 1, b->count -= 1;
  if (threads > 1 && b->count >= 2 * threads) {
    b->shares = b->count < 8 * threads ? b->count : 8 * threads;
    door_parallel_for((void *)(uintptr_t)f, b->shares, door_share, b);
    return;
  }
  for (size_t n = 0; n < b->count && !door_item(b, b->first + n, &together);) ++n;
}

void *DOOR_JAX(door_frame *f);
void *DOOR_JAX(door_frame *f) {
  if (f->more && f->more->type == DOOR_METADATA) {
    door_metadata *about = ((door_metadata_extension *)(void *)f->more)->about;
    about->api.major = DOOR_FIRST_MAJOR, about->api.minor = DOOR_FIRST_MINOR, about->traits = 0;
    return NULL;
  }
  if (f->stage != DOOR_EXECUTE) return NULL;
  if (f->args.count != DOOR_GIVEN || f->rets.count != DOOR_ARGUMENTS - DOOR_GIVEN)
    return door_fail(f, DOOR_INVALID_ARGUMENT, DOOR_NAME ": expected %d arrays and %d results, got %lld and %lld", DOOR_GIVEN,
                DOOR_ARGUMENTS - DOOR_GIVEN, (long long)f->args.count, (long long)f->rets.count);
  const door_buffer *first = f->rets.items[0], *arrays[DOOR_ARGUMENTS];
  const int64_t leading = first->rank - door_arguments[DOOR_GIVEN].rank;
  if (leading < 0 || leading > DOOR_LEADING)
    return door_fail(f, DOOR_INVALID_ARGUMENT, DOOR_NAME ": %lld leading dimensions, at most %d are taken", (long long)leading, DOOR_LEADING);
  void *error;
  char why[DOOR_WORDS];
  door_sizes sizes;
  const int64_t *shapes[DOOR_ARGUMENTS];
  door_batch batch = {.arrays = arrays, .sizes = &sizes, .leading = leading, .extents = first->dims};
  for (int p = 0; p < DOOR_ARGUMENTS; ++p) {
    arrays[p] = p < DOOR_GIVEN ? f->args.items[p] : f->rets.items[p - DOOR_GIVEN];
    if ((error = door_misfit(f, p, arrays[p], leading, first->dims, NULL))) return error;
    shapes[p] = arrays[p]->dims + leading;
  }
  if (door_sized(shapes, &sizes, why, sizeof why)) return door_fail(f, DOOR_INVALID_ARGUMENT, DOOR_NAME ": %s", why);
  for (int p = 0; p < DOOR_ARGUMENTS; ++p) {
    if ((error = door_misfit(f, p, arrays[p], leading, first->dims, &sizes))) return error;
    if (p >= DOOR_GIVEN && sizes.of[p].bytes) batch.count = 1;
  }
  for (int64_t n = 0; n < leading; ++n) batch.count *= (size_t)first->dims[n];
  if (batch.count) door_items(f, &batch);
  return door_explain(f, &batch);
}
