/* Blocks of a kernel on several threads, which sleep between calls. The caller works too, and alone where that is
 * faster: where another call has the threads, and where all blocks take less time than waking somebody.
 *
 * A word holds the number of the job and how many of its blocks nobody has taken. Whoever takes blocks holds the job:
 * its caller leaves only when all are done, so that what a late thread reads is never another job's. */

typedef struct tir_launch {
  void (*run)(void *const *args, const int64_t *block);
  void *const *args;
  int64_t grid[3];
  size_t local; /* bytes of memory that a block works in, whose address is behind its place in the grid */
  _Atomic int failed;
} tir_launch;

typedef void (*tir_body)(void *state, size_t block);

enum { TIR_MOST_THREADS = 256, TIR_SPIN_US = 100, TIR_ALONE_NS = 6000, TIR_WAKE_NS = 30000 };

static struct {
  _Atomic uint64_t job;
  _Atomic uint32_t done;
  _Atomic int asleep, limit, seeks;
  atomic_flag busy;
  tir_body body;
  void *state;
  uint32_t blocks;
  int workers, prepared;
  pthread_mutex_t mutex;
  pthread_cond_t work;
} tir_pool = {.busy = ATOMIC_FLAG_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER, .work = PTHREAD_COND_INITIALIZER};

static pthread_key_t tir_key;
static pthread_once_t tir_key_once = PTHREAD_ONCE_INIT;
static int tir_has_key;

static void tir_make_key(void) {
  tir_has_key = !pthread_key_create(&tir_key, free);
}

/* Memory that a thread keeps, since its stack may be small; its size is in front of it. NULL: there is none. */
static void *tir_local(size_t bytes) {
  pthread_once(&tir_key_once, tir_make_key);
  size_t *held = tir_has_key ? pthread_getspecific(tir_key) : NULL;
  if (held && *held >= bytes) return (char *)held + 64;
  size_t *const made = tir_has_key ? aligned_alloc(64, 64 + (bytes + 63) / 64 * 64) : NULL;
  if (!made) return NULL;
  *made = bytes;
  if (pthread_setspecific(tir_key, made)) {
    free(made);
    return NULL;
  }
  free(held);
  return (char *)made + 64;
}

static void tir_block(void *state, size_t n) {
  tir_launch *l = state;
  const int64_t i = (int64_t)n, x = l->grid[0], y = l->grid[1];
  void *const local = l->local ? tir_local(l->local) : NULL;
  const int64_t block[4] = {x == 1 ? 0 : i % x, y == 1 ? 0 : i / x % y, i / (x * y), (int64_t)(intptr_t)local};
  if (l->local && !local)
    atomic_store(&l->failed, 1);
  else
    l->run(l->args, block);
}

static uint64_t tir_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void tir_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Processors that the process may use. */
static int tir_processors(void) {
#ifdef __linux__
  cpu_set_t may;
  if (sched_getaffinity(0, sizeof may, &may) == 0) return CPU_COUNT(&may);
#endif
  const long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

/* Take blocks and run them until there are none; several at a time while many are left. */
static void tir_take(uint32_t threads) {
  uint64_t job = atomic_load(&tir_pool.job);
  for (;;) {
    const uint32_t left = (uint32_t)job, few = left / (8 * threads) + (left > 0);
    if (!left) return;
    if (!atomic_compare_exchange_weak(&tir_pool.job, &job, job - few)) continue;
    const uint32_t first = tir_pool.blocks - left;
    for (uint32_t n = first; n < first + few; ++n) tir_pool.body(tir_pool.state, n);
    atomic_fetch_add(&tir_pool.done, few);
    job = atomic_load(&tir_pool.job);
  }
}

static void *tir_worker(void *given) {
  const int number = (int)(intptr_t)given;
  for (;;) {
    const uint64_t until = tir_now() + TIR_SPIN_US * 1000u;
    atomic_fetch_add(&tir_pool.seeks, 1);
    for (unsigned n = 1;; ++n) {
      if ((uint32_t)atomic_load(&tir_pool.job) && number < atomic_load(&tir_pool.limit)) {
        tir_take((uint32_t)atomic_load(&tir_pool.limit));
        break;
      }
      tir_pause();
      if (n % 64) continue;
      sched_yield();
      if (tir_now() < until) continue;
      atomic_fetch_sub(&tir_pool.seeks, 1);
      pthread_mutex_lock(&tir_pool.mutex);
      atomic_fetch_add(&tir_pool.asleep, 1);
      while (!(uint32_t)atomic_load(&tir_pool.job) || number >= atomic_load(&tir_pool.limit))
        pthread_cond_wait(&tir_pool.work, &tir_pool.mutex);
      atomic_fetch_sub(&tir_pool.asleep, 1);
      pthread_mutex_unlock(&tir_pool.mutex);
      atomic_fetch_add(&tir_pool.seeks, 1);
      n = 0;
    }
    atomic_fetch_sub(&tir_pool.seeks, 1);
  }
  return NULL;
}

/* A forked child has none of the threads, and locks as they happened to be. */
static void tir_forked(void) {
  pthread_mutex_init(&tir_pool.mutex, NULL);
  pthread_cond_init(&tir_pool.work, NULL);
  atomic_store(&tir_pool.job, 0);
  atomic_store(&tir_pool.asleep, 0);
  atomic_store(&tir_pool.seeks, 0);
  tir_pool.workers = 0;
  atomic_flag_clear(&tir_pool.busy);
}

/* Have so many threads, the caller included; fewer where the system gives no more. */
static int tir_have(int threads) {
  if (!tir_pool.prepared) tir_pool.prepared = 1, pthread_atfork(NULL, NULL, tir_forked);
  if (threads > TIR_MOST_THREADS) threads = TIR_MOST_THREADS;
  sigset_t all, before;
  pthread_attr_t attributes;
  if (tir_pool.workers + 1 >= threads || pthread_attr_init(&attributes)) return tir_pool.workers + 1;
  sigfillset(&all); /* signals are the program's own threads' to handle */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, (size_t)8 << 20);
  for (pthread_t made; tir_pool.workers + 1 < threads; ++tir_pool.workers)
    if (pthread_create(&made, &attributes, tir_worker, (void *)(intptr_t)(tir_pool.workers + 1))) break;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return tir_pool.workers + 1;
}

/* Run body(state, block) for each block. took: nanoseconds of one thread for all of them, of the last call; 0 at first. */
static void tir_run(tir_body body, void *state, size_t blocks, int threads, _Atomic uint64_t *took) {
  const uint64_t known = atomic_load_explicit(took, memory_order_relaxed), began = tir_now();
  const int awake = atomic_load_explicit(&tir_pool.seeks, memory_order_relaxed) > 0;
  int alone = blocks < 2 || threads < 2 || blocks > UINT32_MAX;
  alone = alone || (known && known < (uint64_t)(awake ? TIR_ALONE_NS : TIR_WAKE_NS));
  if (alone || atomic_flag_test_and_set(&tir_pool.busy)) {
    for (size_t n = 0; n < blocks; ++n) body(state, n);
    threads = 1;
  } else {
    threads = tir_have(threads);
    const uint32_t count = (uint32_t)blocks;
    tir_pool.body = body, tir_pool.state = state, tir_pool.blocks = count;
    atomic_store(&tir_pool.done, 0);
    atomic_store(&tir_pool.limit, threads);
    atomic_store(&tir_pool.job, ((atomic_load(&tir_pool.job) >> 32) + 1) << 32 | count);
    if (atomic_load(&tir_pool.asleep)) {
      pthread_mutex_lock(&tir_pool.mutex);
      pthread_cond_broadcast(&tir_pool.work);
      pthread_mutex_unlock(&tir_pool.mutex);
    }
    tir_take((uint32_t)threads);
    for (unsigned n = 1; atomic_load(&tir_pool.done) != count; ++n) {
      tir_pause();
      if (n % 64 == 0) sched_yield();
    }
    atomic_flag_clear(&tir_pool.busy);
    if ((size_t)threads > blocks) threads = (int)blocks;
  }
  const uint64_t now = (tir_now() - began) * (uint64_t)threads + 1;
  /* what disturbs a call makes it longer, never shorter */
  atomic_store_explicit(took, known && known < now ? known + (now - known) / 8 : now, memory_order_relaxed);
}
