/* Calls door_jax.c as XLA does, with a queue whose tasks start at once, late (after the kernel has returned) or not at all. */
#include "door_jax.c"
#include <pthread.h>

enum { MOST = 4096 };
enum { AT_ONCE, LATE, REFUSED };
static struct { void (*task)(void *); void *data; } queue[MOST];
static pthread_t started[MOST];
static int queued, mode, errors;

static void *create(door_error_args *e) { return ++errors, fprintf(stderr, "%s\n", e->message), (void *)&errors; }
static void discard(door_destroy_args *e) { (void)e; }
static void *runs(void *n) { return queue[(intptr_t)n].task(queue[(intptr_t)n].data), NULL; }
static void *count(door_threads_args *e) { return *e->count = 4, NULL; }
static void *schedule(door_schedule_args *e) {
  if (mode == REFUSED) return (void *)&mode;
  queue[queued].task = e->task, queue[queued].data = e->data;
  if (mode == AT_ONCE) pthread_create(&started[queued], NULL, runs, (void *)(intptr_t)queued);
  ++queued;
  return NULL;
}

static const door_interface api = {
    .size = sizeof api, .error_create = create, .error_destroy = discard, .schedule = schedule, .count_threads = count};

int main(void) {
  enum { M = 33, N = 20, K = 17, BATCH = 40 };
  float *a = aligned_alloc(64, 64 * 1700), *b = aligned_alloc(64, 64 * 50), *y = aligned_alloc(64, 64 * 1700);
  for (int n = 0; n < BATCH * M * K; ++n) a[n] = (float)(n % 5);
  for (int n = 0; n < K * N; ++n) b[n] = (float)(n % 7);
  int64_t da[] = {BATCH, M, K}, db[] = {1, K, N}, dy[] = {BATCH, M, N};
  door_buffer ba = {.dtype = 11, .data = a, .rank = 3, .dims = da}, bb = {.dtype = 11, .data = b, .rank = 3, .dims = db},
              by = {.dtype = 11, .data = y, .rank = 3, .dims = dy}, *args[] = {&ba, &bb}, *rets[] = {&by};
  door_frame f = {.api = &api, .stage = DOOR_EXECUTE, .args = {.count = 2, .items = args}, .rets = {.count = 1, .items = rets}};
  int wrong = 0;
  for (mode = AT_ONCE; mode <= REFUSED; ++mode) {
    for (int turn = 0; turn < 20; ++turn) {
      memset(y, 0xff, sizeof(float) * BATCH * M * N);
      wrong += DOOR_JAX(&f) != NULL;
      for (int n = 0; n < queued; ++n) {
        if (mode == LATE) runs((void *)(intptr_t)n);
        else pthread_join(started[n], NULL);
      }
      queued = 0;
      for (int n = 0; n < BATCH * M * N; ++n) {
        float sum = 0;
        for (int k = 0; k < K; ++k) sum += a[n / N * K + k] * b[k * N + n % N];
        wrong += sum != y[n];
      }
    }
  }
  bb.dtype = 12;
  wrong += DOOR_JAX(&f) == NULL || errors != 1;
  free(a), free(b), free(y);
  return puts(wrong ? "wrong" : "right"), wrong != 0;
}
