/* --- the host: libOpenCL, found when it runs; its functions as far as they are used here */
#define TIR_CL(X) \
  X(GetPlatformIDs, int32_t, (uint32_t, void **, uint32_t *)) \
  X(GetPlatformInfo, int32_t, (void *, uint32_t, size_t, void *, size_t *)) \
  X(GetDeviceIDs, int32_t, (void *, uint64_t, uint32_t, void **, uint32_t *)) \
  X(GetDeviceInfo, int32_t, (void *, uint32_t, size_t, void *, size_t *)) \
  X(CreateContext, void *, (const intptr_t *, uint32_t, void *const *, void *, void *, int32_t *)) \
  X(CreateCommandQueue, void *, (void *, void *, uint64_t, int32_t *)) \
  X(GetCommandQueueInfo, int32_t, (void *, uint32_t, size_t, void *, size_t *)) \
  X(CreateProgramWithSource, void *, (void *, uint32_t, const char **, const size_t *, int32_t *)) \
  X(BuildProgram, int32_t, (void *, uint32_t, void *const *, const char *, void *, void *)) \
  X(GetProgramBuildInfo, int32_t, (void *, void *, uint32_t, size_t, void *, size_t *)) \
  X(CreateKernel, void *, (void *, const char *, int32_t *)) \
  X(SetKernelArg, int32_t, (void *, uint32_t, size_t, const void *)) \
  X(CreateBuffer, void *, (void *, uint64_t, size_t, void *, int32_t *)) \
  X(EnqueueWriteBuffer, int32_t, \
    (void *, void *, uint32_t, size_t, size_t, const void *, uint32_t, void *const *, void **)) \
  X(EnqueueReadBuffer, int32_t, (void *, void *, uint32_t, size_t, size_t, void *, uint32_t, void *const *, void **)) \
  X(EnqueueMapBuffer, void *, \
    (void *, void *, uint32_t, uint64_t, size_t, size_t, uint32_t, void *const *, void **, int32_t *)) \
  X(EnqueueUnmapMemObject, int32_t, (void *, void *, void *, uint32_t, void *const *, void **)) \
  X(EnqueueNDRangeKernel, int32_t, (void *, void *, uint32_t, const size_t *, const size_t *, const size_t *, uint32_t, \
    void *const *, void **)) \
  X(Finish, int32_t, (void *)) \
  X(ReleaseKernel, int32_t, (void *)) \
  X(ReleaseProgram, int32_t, (void *)) \
  X(ReleaseContext, int32_t, (void *)) \
  X(RetainContext, int32_t, (void *)) \
  X(ReleaseMemObject, int32_t, (void *))

#define TIR_DECLARE(name, type, takes) type(*name) takes;
static struct {
  TIR_CL(TIR_DECLARE)
} cl;

enum {
  TIR_CL_CPU = 2, TIR_CL_GPU = 4, TIR_CL_ANY = -1,
  TIR_CL_DEVICE_TYPE = 0x1000, TIR_CL_UNIFIED = 0x1035, TIR_CL_PLATFORM = 0x1031, TIR_CL_PLATFORM_NAME = 0x0902,
  TIR_CL_QUEUE_CONTEXT = 0x1090, TIR_CL_QUEUE_DEVICE = 0x1091, TIR_CL_QUEUE_PROPERTIES = 0x1093,
  TIR_CL_BUILD_LOG = 0x1183, TIR_CL_READ_WRITE = 1, TIR_CL_READ_ONLY = 4, TIR_CL_USE_HOST_PTR = 8, TIR_CL_COPY_HOST_PTR = 32,
  TIR_CL_MAP_READ = 1
};

/* What is made once for a device of a context; queue: the own one, on whose device arrays of the host are worked on. */
typedef struct tir_ready {
  struct tir_ready *next;
  void *context, *device, *queue, *program, *kernels[TIR_MOST_KERNELS], *constants[TIR_MOST_ARRAYS];
  void *spaces[TIR_MOST_ARRAYS]; /* of the own queue, kept between calls, and their bytes */
  size_t room[TIR_MOST_ARRAYS];
  int unified;
} tir_ready;

static tir_ready *tir_every, *tir_own;
static pid_t tir_process;

static int tir_loaded(void) {
  static int loaded;
  if (loaded) return 0;
  const char *given = getenv("TENSORIR_LIBOPENCL");
  void *library = tir_library(given && *given ? given : TIR_LIBOPENCL);
  if (!library) return tir_failed(TIR_DRIVER, given && *given ? given : TIR_LIBOPENCL, "there is no such library", 0);
#define TIR_FIND(name, type, takes) \
  { \
    void *const found = dlsym(library, "cl" #name); \
    if (!found) return tir_failed(TIR_DRIVER, "libOpenCL", "it lacks cl" #name, 0); \
    memcpy(&cl.name, &found, sizeof found); \
  }
  TIR_CL(TIR_FIND)
  loaded = 1;
  tir_process = getpid();
  return 0;
}

static int tir_named(void *platform, const char *part) {
  char name[256] = "";
  cl.GetPlatformInfo(platform, TIR_CL_PLATFORM_NAME, sizeof name - 1, name, NULL);
  for (char *c = name; *c; ++c) *c = (char)(*c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
  return strstr(name, part) != NULL;
}

/* A device of the wanted kind, simulators last. */
static int tir_device(void **device) {
  void *platforms[32], *devices[32];
  uint32_t count = 0, worst = 5;
  const int32_t status = cl.GetPlatformIDs(32, platforms, &count);
  if (status) count = 0;
  for (uint32_t p = 0; p < count && p < 32; ++p) {
    uint32_t found = 0;
    if (cl.GetDeviceIDs(platforms[p], 0xFFFFFFFF, 32, devices, &found)) continue;
    for (uint32_t d = 0; d < found && d < 32; ++d) {
      uint64_t kind = 0;
      cl.GetDeviceInfo(devices[d], TIR_CL_DEVICE_TYPE, sizeof kind, &kind, NULL);
      const uint32_t bad = 2 * (uint32_t)tir_named(platforms[p], "oclgrind") + !(kind & TIR_WANTED);
      if (bad < worst) worst = bad, *device = devices[d];
    }
  }
  return worst < 5 ? 0 : tir_failed(TIR_DEVICE, "OpenCL", "there is no device", status);
}

/* PoCL's compiler may be older than the processor: say where it has AVX-512. */
static int tir_wide(void *device) {
#if defined(__x86_64__)
  void *platform = NULL;
  uint64_t kind = 0;
  cl.GetDeviceInfo(device, TIR_CL_PLATFORM, sizeof platform, &platform, NULL);
  cl.GetDeviceInfo(device, TIR_CL_DEVICE_TYPE, sizeof kind, &kind, NULL);
  __builtin_cpu_init();
  return (kind & TIR_CL_CPU) && tir_named(platform, "portable computing") && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
  (void)device;
  return 0;
#endif
}

/* Give PoCL a processor that its compiler knows, where the machine's is younger than its LLVM: that calls it "generic",
   which Clang refuses. PoCL keeps the name behind the triple in the device. Whether there was such a one. */
static int tir_processor(void *device) {
  int done = 0;
#if defined(__x86_64__) && defined(__linux__)
  uint64_t words[256] = {0};
  char triple[8] = "", name[8] = "";
  const int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC); /* which reads what may be no address */
  if (memory < 0) return 0;
  __builtin_cpu_init();
  const int modern = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                     __builtin_cpu_supports("fma");
  const char *kin = !modern ? "x86-64" : __builtin_cpu_supports("sse4a") ? "znver3" : "haswell";
  ssize_t size = pread(memory, words, sizeof words, (off_t)(intptr_t)device);
  for (size_t n = 0; size > 0 && n + 1 < (size_t)size / 8; ++n)
    if (pread(memory, triple, 7, (off_t)words[n]) == 7 && !memcmp(triple, "x86_64-", 7) &&
        pread(memory, name, 8, (off_t)words[n + 1]) == 8 && !memcmp(name, "generic", 8))
      done |= pwrite(memory, kin, strlen(kin) + 1, (off_t)words[n + 1]) > 0;
  close(memory);
#else
  (void)device;
#endif
  return done;
}

static int tir_built(tir_ready *here) {
  const tir_program *p = &tir_programs[0];
  const char *text = p->text, *options = tir_wide(here->device) ? TIR_OPTIONS " -DTENSORIR_AVX512" : TIR_OPTIONS;
  int32_t status = 0;
  here->program = cl.CreateProgramWithSource(here->context, 1, &text, NULL, &status);
  if (status) return tir_failed(TIR_BUILD, "clCreateProgramWithSource", "it failed", status);
  status = cl.BuildProgram(here->program, 1, &here->device, options, NULL, NULL);
  if (status) {
    char log[900] = "";
    cl.GetProgramBuildInfo(here->program, here->device, TIR_CL_BUILD_LOG, sizeof log - 1, log, NULL);
    if (strstr(log, "CPU 'generic'") && tir_processor(here->device)) {
      cl.ReleaseProgram(here->program);
      here->program = NULL;
      return tir_built(here);
    }
    return tir_failed(TIR_BUILD, "the kernels do not compile", log, status);
  }
  for (int n = 0; n < p->kernels; ++n) {
    here->kernels[n] = cl.CreateKernel(here->program, p->kernel[n].name, &status);
    if (status) return tir_failed(TIR_BUILD, p->kernel[n].name, "there is no such kernel", status);
  }
  for (int n = 0; n < p->arrays; ++n) {
    const tir_array *a = &p->array[n];
    if (a->role != TIR_CONSTANT || !a->bytes) continue;
    here->constants[n] = cl.CreateBuffer(here->context, TIR_CL_READ_ONLY | TIR_CL_COPY_HOST_PTR, a->bytes,
                                         (void *)(uintptr_t)tir_shipped[a->number], &status);
    if (status) return tir_failed(TIR_MEMORY, "a constant", "it has no room on the device", status);
  }
  return 0;
}

static void tir_gone(tir_ready *here) {
  for (int n = 0; n < TIR_MOST_ARRAYS; ++n)
    if (here->constants[n]) cl.ReleaseMemObject(here->constants[n]);
  for (int n = 0; n < TIR_MOST_KERNELS; ++n)
    if (here->kernels[n]) cl.ReleaseKernel(here->kernels[n]);
  if (here->program) cl.ReleaseProgram(here->program);
  if (here->context) cl.ReleaseContext(here->context);
  free(here);
}

/* What was, or is now, made for a queue; NULL for the own one. */
static int tir_made(void *queue, tir_ready **found) {
  void *context = NULL, *device = NULL;
  uint64_t how = 0;
  int code = tir_loaded();
  if (code) return code;
  if (getpid() != tir_process)
    return tir_failed(TIR_DEVICE, "OpenCL", "the process forked after its first use, and drivers do not fork", 0);
  if (queue) {
    int32_t status = cl.GetCommandQueueInfo(queue, TIR_CL_QUEUE_CONTEXT, sizeof context, &context, NULL);
    if (!status) status = cl.GetCommandQueueInfo(queue, TIR_CL_QUEUE_DEVICE, sizeof device, &device, NULL);
    if (!status) status = cl.GetCommandQueueInfo(queue, TIR_CL_QUEUE_PROPERTIES, sizeof how, &how, NULL);
    if (status) return tir_failed(TIR_DEVICE, "call->stream", "it is no command queue", status);
    if (how & 1) return tir_failed(TIR_DEVICE, "call->stream", "commands of this queue run out of order", 0);
    for (*found = tir_every; *found; *found = (*found)->next)
      if ((*found)->context == context && (*found)->device == device) return 0;
  } else if (tir_own) {
    *found = tir_own;
    return 0;
  }
  tir_ready *here = calloc(1, sizeof *here);
  if (!here) return tir_failed(TIR_MEMORY, "malloc", "there is no memory", 0);
  if (queue) {
    here->context = context, here->device = device;
    cl.RetainContext(context);
  } else {
    int32_t status = 0;
    if ((code = tir_device(&here->device))) return tir_gone(here), code;
    here->context = cl.CreateContext(NULL, 1, &here->device, NULL, NULL, &status);
    if (!status) here->queue = cl.CreateCommandQueue(here->context, here->device, 0, &status);
    if (status) return tir_gone(here), tir_failed(TIR_DEVICE, "clCreateContext", "it failed", status);
  }
  uint32_t unified = 0;
  cl.GetDeviceInfo(here->device, TIR_CL_UNIFIED, sizeof unified, &unified, NULL);
  here->unified = unified != 0;
  if ((code = tir_built(here))) return tir_gone(here), code;
  here->next = tir_every, tir_every = here;
  if (!queue) tir_own = here;
  *found = here;
  return 0;
}

/* Memory of the device for an array: the host's own where device and address allow that. */
static void *tir_memory(const tir_ready *here, void *queue, const tir_array *a, void *host, int direct, int32_t *status) {
  const uint64_t flags = a->role == TIR_OUTPUT || a->role == TIR_SPACE ? TIR_CL_READ_WRITE : TIR_CL_READ_ONLY;
  if (direct) return cl.CreateBuffer(here->context, flags | TIR_CL_USE_HOST_PTR, a->bytes, host, status);
  void *made = cl.CreateBuffer(here->context, flags, a->bytes ? a->bytes : 16, NULL, status);
  if (!*status && host && a->bytes && a->role != TIR_OUTPUT)
    *status = cl.EnqueueWriteBuffer(queue, made, 1, 0, a->bytes, host, 0, NULL, NULL);
  return made;
}

/* Whether an array of the host is used where it is: no other one, of which there is device memory, has bytes of it. */
static int tir_direct(const tir_ready *here, const tir_array *array, void *const *given, int at) {
  const uintptr_t start = (uintptr_t)given[at];
  if (!here->unified || !array[at].bytes || start % array[at].align) return 0;
  for (int n = 0; n < TIR_GIVEN; ++n)
    if (n != at && array[n].role != TIR_SCALAR && start < (uintptr_t)given[n] + array[n].bytes &&
        (uintptr_t)given[n] < start + array[at].bytes)
      return 0;
  return 1;
}

/* Memory that calls without a queue share: a larger one where this call needs more. */
static void *tir_space(tir_ready *here, const tir_array *a, int n, int32_t *status) {
  if (here->spaces[n] && here->room[n] < a->bytes) cl.ReleaseMemObject(here->spaces[n]), here->spaces[n] = NULL;
  if (!here->spaces[n]) here->spaces[n] = tir_memory(here, here->queue, a, NULL, 0, status), here->room[n] = a->bytes;
  return here->spaces[n];
}

static int tir_launched(tir_ready *here, const tir_program *p, void *queue, void *const *given, void *const *memory) {
  for (int n = 0; n < p->kernels; ++n) {
    const tir_kernel *k = &p->kernel[n];
    int32_t status = 0;
    for (int a = 0; a < k->count && !status; ++a) {
      const tir_array *array = &p->array[k->args[a]];
      const int scalar = array->role == TIR_SCALAR;
      status = cl.SetKernelArg(here->kernels[n], (uint32_t)a, scalar ? array->bytes : sizeof(void *),
                               scalar ? given[k->args[a]] : (const void *)&memory[k->args[a]]);
    }
    const size_t size[3] = {k->grid[0] * k->block[0], k->grid[1] * k->block[1], k->grid[2] * k->block[2]};
    if (!status && size[0] && size[1] && size[2])
      status = cl.EnqueueNDRangeKernel(queue, here->kernels[n], 3, NULL, size, k->block, 0, NULL, NULL);
    if (status) return tir_failed(TIR_LAUNCH, k->name, "it was not launched", status);
  }
  return 0;
}

static int tir_run(tir_ready *here, void *stream, void *const *given) {
  tir_shaped shaped;
  const tir_program *p = tir_at(&tir_programs[0], given, &shaped);
  void *memory[TIR_MOST_ARRAYS] = {0}, *queue = stream ? stream : here->queue;
  unsigned char mine[TIR_MOST_ARRAYS] = {0}, direct[TIR_MOST_ARRAYS] = {0};
  int32_t status = 0;
  int code = 0;
  for (int n = 0; n < p->arrays && !status; ++n) {
    const tir_array *a = &p->array[n];
    void *host = n < TIR_GIVEN ? given[n] : NULL;
    if (a->role == TIR_SCALAR) continue;
    if (a->role == TIR_CONSTANT) {
      const void *now = tir_constants[a->number];
      host = (void *)(uintptr_t)now;
      if (now == tir_shipped[a->number] && a->bytes) memory[n] = here->constants[n];
    } else if (a->role == TIR_SPACE && !stream) {
      memory[n] = tir_space(here, a, n, &status);
    } else if (n < TIR_GIVEN && stream) {
      memory[n] = host;
    }
    if (memory[n] || status) continue;
    direct[n] = n < TIR_GIVEN && tir_direct(here, p->array, given, n);
    memory[n] = tir_memory(here, queue, a, host, direct[n], &status);
    mine[n] = memory[n] != NULL;
  }
  if (status) code = tir_failed(TIR_MEMORY, "an array", "it has no room on the device", status);
  if (!code) code = tir_launched(here, p, queue, given, memory);
  for (int n = 0; n < TIR_GIVEN && !stream && !code; ++n) {
    const size_t bytes = p->array[n].bytes;
    if (p->array[n].role != TIR_OUTPUT || !bytes) continue;
    if (direct[n]) {
      void *seen = cl.EnqueueMapBuffer(queue, memory[n], 1, TIR_CL_MAP_READ, 0, bytes, 0, NULL, NULL, &status);
      if (!status) status = cl.EnqueueUnmapMemObject(queue, memory[n], seen, 0, NULL, NULL);
    } else {
      status = cl.EnqueueReadBuffer(queue, memory[n], 1, 0, bytes, given[n], 0, NULL, NULL);
    }
    if (status) code = tir_failed(TIR_LAUNCH, "a result", "it cannot be read", status);
  }
  if (!stream && (status = cl.Finish(queue)) && !code) code = tir_failed(TIR_LAUNCH, "clFinish", "it failed", status);
  for (int n = 0; n < p->arrays; ++n)
    if (mine[n]) cl.ReleaseMemObject(memory[n]); /* it lives on until what is enqueued has run */
  return code;
}

int TIR_FUNCTION(load)(const tir_call *call) {
  tir_call known;
  tir_ready *here;
  if (call && !(call = tir_known(call, &known))) return tir_failed(TIR_SIZE, "call->size", "it is not set", 0);
  pthread_mutex_lock(&tir_lock);
  const int code = tir_made(call ? call->stream : NULL, &here);
  pthread_mutex_unlock(&tir_lock);
  return code;
}

int TIR_NAME(const tir_call *call, void *const *buffers) {
  tir_call known;
  if (call && !(call = tir_known(call, &known))) return tir_failed(TIR_SIZE, "call->size", "it is not set", 0);
  void *const stream = call ? call->stream : NULL;
  tir_ready *here;
  int code = tir_checked(buffers, stream != NULL);
  if (!code && !stream) code = tir_indices(buffers, NULL);
  if (code) return code;
  pthread_mutex_lock(&tir_lock); /* kernel objects hold arguments, and calls share the workspace */
  if (!(code = tir_made(stream, &here))) code = tir_run(here, stream, buffers);
  pthread_mutex_unlock(&tir_lock);
  return code;
}
