/* The kernel as a target of XLA's foreign function interface, version 0.1, of which newer ones are supersets: jaxlib
   0.5.0 and later take it. Types are declared here as the interface defines them (64-bit machines): no header is needed.

   Arrays may have leading dimensions in front of the kernel's, as jax.vmap gives them with "expand_dims": those of an
   input are the outputs' or 1. The kernel runs once for each. Blocks of a kernel are run by XLA's own threads. */
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include "door.h"

enum { DOOR_METADATA = 1, DOOR_EXECUTE = 3, DOOR_INVALID_ARGUMENT = 3, DOOR_INTERNAL = 13, DOOR_LEADING = 16 };
enum { DOOR_FIRST_MAJOR = 0, DOOR_FIRST_MINOR = 1 };

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
  char text[512];
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

/* What is wrong with an array, or NULL. leading: how many dimensions are in front of the kernel's. */
static void *door_misfit(const door_frame *f, int p, const door_buffer *b, int64_t leading, const int64_t *extents) {
  char text[256];
  const door_argument *a = &door_arguments[p];
  int fits = b->dtype == a->xla && b->rank == a->rank + leading;
  for (int64_t n = 0; fits && n < b->rank; ++n)
    fits = n < leading ? b->dims[n] == extents[n] || (b->dims[n] == 1 && p < DOOR_GIVEN) : b->dims[n] == a->shape[n - leading];
  if (fits) return NULL;
  return door_fail(f, DOOR_INVALID_ARGUMENT, DOOR_NAME ": %s: expected %s, got an array of type %d and rank %lld", a->name,
              door_expected(a, text, sizeof text), (int)b->dtype, (long long)b->rank);
}

static void *door_compute(const door_frame *f, void *const *buffers) {
  char text[128];
  const tir_call call = {.size = sizeof call, .parallel_for = door_parallel_for, .pool = (void *)(uintptr_t)f};
  const door_argument *wrong = door_index_wrong(buffers);
  if (wrong)
    return door_fail(f, DOOR_INVALID_ARGUMENT, DOOR_NAME ": %s: an index is not in 0 ... %lld", wrong->name, (long long)wrong->limit - 1);
  const int code = door_call(&call, buffers);
  return code ? door_fail(f, DOOR_INTERNAL, "%s", door_said(code, text, sizeof text)) : NULL;
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
  void *buffers[DOOR_ARGUMENTS], *error;
  size_t empty = 1;
  for (int p = 0; p < DOOR_ARGUMENTS; ++p) {
    arrays[p] = p < DOOR_GIVEN ? f->args.items[p] : f->rets.items[p - DOOR_GIVEN];
    if ((error = door_misfit(f, p, arrays[p], leading, first->dims))) return error;
    buffers[p] = arrays[p]->data;
    if (p >= DOOR_GIVEN && door_arguments[p].bytes) empty = 0;
  }
  size_t count = !empty;
  for (int64_t n = 0; n < leading; ++n) count *= (size_t)first->dims[n];
  int64_t at[DOOR_LEADING] = {0};
  for (size_t done = 0; done < count; ++done) {
    if ((error = door_compute(f, buffers))) return error;
    for (int64_t n = leading - 1; n >= 0 && ++at[n] == first->dims[n]; --n) at[n] = 0;
    for (int p = 0; p < DOOR_ARGUMENTS; ++p) {
      size_t place = 0;
      for (int64_t n = 0; n < leading; ++n)
        place = place * (size_t)arrays[p]->dims[n] + (arrays[p]->dims[n] == 1 ? 0 : (size_t)at[n]);
      buffers[p] = (char *)arrays[p]->data + place * door_arguments[p].bytes;
    }
  }
  return NULL;
}
