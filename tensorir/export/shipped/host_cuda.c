/* --- the host: libcuda, found when it runs; its functions as far as they are used here, the last ones where it has them */
#define TIR_CU(X) \
  X(cuInit, (unsigned)) \
  X(cuDriverGetVersion, (int *)) \
  X(cuDeviceGet, (int *, int)) \
  X(cuDeviceGetAttribute, (int *, int, int)) \
  X(cuDevicePrimaryCtxRetain, (void **, int)) \
  X(cuCtxGetCurrent, (void **)) \
  X(cuCtxPushCurrent_v2, (void *)) \
  X(cuCtxPopCurrent_v2, (void **)) \
  X(cuCtxGetDevice, (int *)) \
  X(cuStreamGetCtx, (void *, void **)) \
  X(cuStreamSynchronize, (void *)) \
  X(cuModuleLoadData, (void **, const void *)) \
  X(cuModuleUnload, (void *)) \
  X(cuModuleGetFunction, (void **, void *, const char *)) \
  X(cuFuncGetAttribute, (int *, int, void *)) \
  X(cuFuncSetAttribute, (void *, int, int)) \
  X(cuPointerGetAttribute, (void *, int, uint64_t)) \
  X(cuMemAlloc_v2, (uint64_t *, size_t)) \
  X(cuMemFree_v2, (uint64_t)) \
  X(cuMemcpyHtoD_v2, (uint64_t, const void *, size_t)) \
  X(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *)) \
  X(cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, void *)) \
  X(cuLaunchKernel, (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, \
    void **))
#define TIR_CU_NEWER(X) \
  X(cuMemAllocAsync, (uint64_t *, size_t, void *)) \
  X(cuMemFreeAsync, (uint64_t, void *)) \
  X(cuLaunchKernelEx, (const tir_config *, void *, void **, void **)) \
  X(cuTensorMapEncodeTiled, (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, \
    const uint32_t *, int, int, int, int)) \
  X(cuTensorMapEncodeIm2col, (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const int *, \
    const int *, uint32_t, uint32_t, const uint32_t *, int, int, int, int))
#define TIR_NVRTC(X) \
  X(nvrtcCreateProgram, (void **, const char *, const char *, int, const char *const *, const char *const *)) \
  X(nvrtcCompileProgram, (void *, int, const char *const *)) \
  X(nvrtcGetProgramLogSize, (void *, size_t *)) \
  X(nvrtcGetProgramLog, (void *, char *)) \
  X(nvrtcGetCUBINSize, (void *, size_t *)) \
  X(nvrtcGetCUBIN, (void *, char *)) \
  X(nvrtcDestroyProgram, (void **))

typedef struct { /* CUlaunchAttribute */
  uint32_t id, pad, value[16];
} tir_attribute;

typedef struct { /* CUlaunchConfig */
  unsigned grid[3], block[3], shared;
  void *stream;
  tir_attribute *attributes;
  unsigned count;
} tir_config;

#define TIR_DECLARE(name, takes) int(*name) takes;
static struct {
  TIR_CU(TIR_DECLARE) TIR_CU_NEWER(TIR_DECLARE)
} cu;

enum {
  TIR_CU_MAJOR = 75, TIR_CU_MINOR = 76, TIR_CU_MEMORY_TYPE = 2, TIR_CU_IS_MANAGED = 8, TIR_CU_HOST = 1,
  TIR_CU_STATIC_SHARED = 1, TIR_CU_MOST_SHARED = 8, TIR_CU_REQUIRED_CLUSTER = 11, TIR_CU_CLUSTER = 4,
  TIR_CU_L2_256_BYTES = 3, TIR_CU_NOT_SUPPORTED = 801, TIR_CU_UNASKED = 48 << 10, TIR_CU_MENDED = 13010, TIR_MAP = 128
};

/* What is made once for a context: the program that its device runs, loaded. */
typedef struct tir_ready {
  struct tir_ready *next;
  void *context, *module, *functions[TIR_MOST_KERNELS];
  unsigned dynamic[TIR_MOST_KERNELS]; /* bytes of block memory to pass: all or, where it is declared, none */
  unsigned char clusters[TIR_MOST_KERNELS]; /* whether the launch has to say them */
  uint64_t constants[TIR_MOST_ARRAYS];
  const tir_program *program;
} tir_ready;

static tir_ready *tir_every;
static int tir_version;

static int tir_loaded(void) {
  static int loaded;
  if (loaded) return 0;
  const char *given = getenv("TENSORIR_LIBCUDA");
  void *library = tir_library(given && *given ? given : TIR_LIBCUDA);
  if (!library) return tir_failed(TIR_DRIVER, given && *given ? given : TIR_LIBCUDA, "there is no such library", 0);
#define TIR_FIND(name, takes) \
  { \
    void *const found = dlsym(library, #name); \
    if (!found) return tir_failed(TIR_DRIVER, "libcuda", "it lacks " #name, 0); \
    memcpy(&cu.name, &found, sizeof found); \
  }
#define TIR_SEEK(name, takes) \
  { \
    void *const found = dlsym(library, #name); \
    memcpy(&cu.name, &found, sizeof found); \
  }
  TIR_CU(TIR_FIND)
  TIR_CU_NEWER(TIR_SEEK)
  const int status = cu.cuInit(0);
  if (status) return tir_failed(TIR_DEVICE, "cuInit", "there is no device", status);
  cu.cuDriverGetVersion(&tir_version);
  loaded = 1;
  return 0;
}

/* Machine code of a text, made by NVRTC; NULL with the reason said. */
static char *tir_compiled(const tir_program *p, int own) {
  struct {
    TIR_NVRTC(TIR_DECLARE)
  } rtc;
  const char *given = getenv("TENSORIR_LIBNVRTC"), *place = getenv("CUDA_PATH");
  void *library = tir_library(given && *given ? given : TIR_LIBNVRTC);
  if (!library) return tir_failed(TIR_BUILD, "no image for this device, and NVRTC", "there is no such library", 0), NULL;
#define TIR_RTC(name, takes) \
  { \
    void *const found = dlsym(library, #name); \
    if (!found) return tir_failed(TIR_BUILD, "NVRTC", "it lacks " #name, 0), NULL; \
    memcpy(&rtc.name, &found, sizeof found); \
  }
  TIR_NVRTC(TIR_RTC)
  char arch[64], include[512], *made = NULL;
  snprintf(arch, sizeof arch, "--gpu-architecture=sm_%d%s", own, p->special ? "a" : "");
  snprintf(include, sizeof include, "-I%s/include", place && *place ? place : "/usr/local/cuda");
  const char *const options[] = {TIR_OPTIONS, arch, include};
  void *program = NULL;
  size_t size = 0;
  int status = rtc.nvrtcCreateProgram(&program, p->text, "kernels.cu", 0, NULL, NULL);
  if (!status) status = rtc.nvrtcCompileProgram(program, 3, options);
  if (status) {
    char *log = !rtc.nvrtcGetProgramLogSize(program, &size) ? calloc(1, size + 1) : NULL;
    if (log) rtc.nvrtcGetProgramLog(program, log);
    tir_failed(TIR_BUILD, "the kernels do not compile", log ? log : "no log", status);
    free(log);
  } else if (!(status = rtc.nvrtcGetCUBINSize(program, &size)) && (made = calloc(1, size + 1))) {
    rtc.nvrtcGetCUBIN(program, made);
  } else {
    tir_failed(TIR_BUILD, "NVRTC", "it made no machine code", status);
  }
  rtc.nvrtcDestroyProgram(&program);
  return made;
}

/* Load an image, or else a text, as the program of a context. */
static int tir_taken(tir_ready *here, const tir_program *p, const void *image, int own) {
  char *made = image ? NULL : tir_compiled(p, own);
  if (!image && !made) return TIR_BUILD;
  int status = cu.cuModuleLoadData(&here->module, image ? image : made);
  free(made);
  if (status) return tir_failed(TIR_BUILD, "an image", "the driver does not take it", status);
  for (int n = 0; n < p->kernels && !status; ++n) {
    const tir_kernel *k = &p->kernel[n];
    int declared = 0, cluster = 0;
    status = cu.cuModuleGetFunction(&here->functions[n], here->module, k->name);
    if (!status) status = cu.cuFuncGetAttribute(&declared, TIR_CU_STATIC_SHARED, here->functions[n]);
    here->dynamic[n] = (size_t)declared >= k->shared ? 0 : (unsigned)k->shared;
    if (!status && here->dynamic[n] > TIR_CU_UNASKED)
      status = cu.cuFuncSetAttribute(here->functions[n], TIR_CU_MOST_SHARED, (int)k->shared);
    if (k->cluster > 1) {
      cu.cuFuncGetAttribute(&cluster, TIR_CU_REQUIRED_CLUSTER, here->functions[n]);
      here->clusters[n] = !cluster; /* 0 as well where the driver does not know of them */
    }
    if (status) tir_failed(TIR_BUILD, k->name, "the driver does not take it", status);
  }
  if (status) {
    cu.cuModuleUnload(here->module);
    return TIR_BUILD;
  }
  here->program = p;
  return 0;
}

/* The exact machine code, else the newest PTX that is not above the device, else the text: the first that loads. */
static int tir_chosen(tir_ready *here, int own) {
  const tir_image *cubin = NULL, *ptx = NULL;
  int code = -1;
  for (const tir_image *i = tir_images; i->data; ++i) {
    if (!i->ptx && i->arch == own &&
        (!cubin || i->program < cubin->program || (i->program == cubin->program && i->special && !cubin->special)))
      cubin = i;
    if (i->ptx && (i->special ? i->arch == own : i->arch <= own) &&
        (!ptx || i->arch > ptx->arch || (i->arch == ptx->arch && (i->program < ptx->program ||
         (i->program == ptx->program && i->special && !ptx->special)))))
      ptx = i;
  }
  if (cubin) code = tir_taken(here, &tir_programs[cubin->program], cubin->data, own);
  if (code && ptx) code = tir_taken(here, &tir_programs[ptx->program], ptx->data, own);
  for (int n = 0; n < TIR_PROGRAMS && code; ++n) {
    const tir_program *p = &tir_programs[n];
    if (p->special ? p->arch != own : p->arch > own) continue;
    code = tir_taken(here, p, NULL, own);
    break;
  }
  if (code < 0) return tir_failed(TIR_DEVICE, "this program was made for another device", "it has sm_", own);
  return code;
}

/* What was, or is now, made for the current context. */
static int tir_made(tir_ready **found) {
  void *context = NULL;
  int device = 0, major = 0, minor = 0, status = cu.cuCtxGetCurrent(&context);
  for (*found = tir_every; *found; *found = (*found)->next)
    if ((*found)->context == context) return 0;
  tir_ready *here = calloc(1, sizeof *here);
  if (!here) return tir_failed(TIR_MEMORY, "malloc", "there is no memory", 0);
  here->context = context;
  if (!status) status = cu.cuCtxGetDevice(&device);
  if (!status) status = cu.cuDeviceGetAttribute(&major, TIR_CU_MAJOR, device);
  if (!status) status = cu.cuDeviceGetAttribute(&minor, TIR_CU_MINOR, device);
  int code = status ? tir_failed(TIR_DEVICE, "the device", "it does not say what it is", status)
                    : tir_chosen(here, 10 * major + minor);
  for (int n = 0; !code && n < here->program->arrays; ++n) {
    const tir_array *a = &here->program->array[n];
    if (a->role != TIR_CONSTANT || !a->bytes) continue;
    status = cu.cuMemAlloc_v2(&here->constants[n], a->bytes);
    if (!status) status = cu.cuMemcpyHtoD_v2(here->constants[n], tir_shipped[a->number], a->bytes);
    if (status) code = tir_failed(TIR_MEMORY, "a constant", "it has no room on the device", status);
  }
  if (code) {
    for (int n = 0; n < TIR_MOST_ARRAYS; ++n)
      if (here->constants[n]) cu.cuMemFree_v2(here->constants[n]);
    if (here->program) cu.cuModuleUnload(here->module);
    free(here);
    return code;
  }
  here->next = tir_every, tir_every = here;
  *found = here;
  return 0;
}

/* Make the context of the stream, the current one, or that of the first device the current one; pushed: whether. */
static int tir_entered(void *stream, int *pushed) {
  static void *first; /* the first device's, for as long as the process lives */
  void *wanted = NULL, *context = NULL;
  int status = cu.cuCtxGetCurrent(&context), device = 0;
  const uintptr_t special = 2; /* the names of default streams, which are those of any context */
  if (!status && (uintptr_t)stream > special) status = cu.cuStreamGetCtx(stream, &wanted);
  if (!status && !context && !wanted) {
    if (!first) status = cu.cuDeviceGet(&device, 0);
    if (!first && !status) status = cu.cuDevicePrimaryCtxRetain(&first, device);
    wanted = first;
  }
  if (!status && wanted && wanted != context && !(status = cu.cuCtxPushCurrent_v2(wanted))) *pushed = 1;
  return status ? tir_failed(TIR_DEVICE, "CUDA", "there is no context", status) : 0;
}

/* Whether an address is of the host: of memory that the driver did not make, or made there. */
static int tir_of_host(uint64_t address) {
  unsigned kind = 0, managed = 0;
  if (cu.cuPointerGetAttribute(&kind, TIR_CU_MEMORY_TYPE, address)) return 1;
  if (kind != TIR_CU_HOST) return 0;
  return cu.cuPointerGetAttribute(&managed, TIR_CU_IS_MANAGED, address) || !managed;
}

#if TIR_MAPS
static int tir_encoded(const tir_map *m, uint64_t address, unsigned char *made) {
  if (!cu.cuTensorMapEncodeTiled || !cu.cuTensorMapEncodeIm2col)
    return tir_failed(TIR_LAUNCH, "a tensor map", "the driver is older than these", 0);
  const uint32_t rank = (uint32_t)m->rank;
  void *const where = (void *)(uintptr_t)address;
  const int status =
      m->pixels ? cu.cuTensorMapEncodeIm2col(made, m->kind, rank, where, m->shape, m->strides, m->lower, m->upper,
                                             m->box[0], m->box[1], m->steps, 0, m->swizzle, TIR_CU_L2_256_BYTES, 0)
                : cu.cuTensorMapEncodeTiled(made, m->kind, rank, where, m->shape, m->strides, m->box, m->steps, 0,
                                            m->swizzle, TIR_CU_L2_256_BYTES, 0);
  if (status) return tir_failed(TIR_LAUNCH, "a tensor map", "the driver refuses it", status);
  if (m->small && tir_version <= TIR_CU_MENDED) { /* drivers up to 13.1 set a bit that is wrong for small arrays */
    uint64_t word;
    memcpy(&word, made + 8, 8);
    word &= ~(UINT64_C(1) << 21);
    memcpy(made + 8, &word, 8);
  }
  return 0;
}
#endif

static int tir_launched(const tir_ready *here, const tir_program *p, void *stream, void *const *given,
                        uint64_t *memory) {
  for (int n = 0; n < p->kernels; ++n) {
    const tir_kernel *k = &p->kernel[n];
    void *args[TIR_MOST_ARGUMENTS];
#if TIR_MAPS
    _Alignas(64) unsigned char maps[TIR_MOST_ARGUMENTS][TIR_MAP];
#endif
    for (int a = 0; a < k->count; ++a) {
      const int at = k->args[a];
#if TIR_MAPS
      if (at < 0) {
        const tir_map *m = &p->map[-1 - at];
        const int code = tir_encoded(m, memory[m->array], maps[a]);
        if (code) return code;
        args[a] = maps[a];
        continue;
      }
#endif
      args[a] = p->array[at].role == TIR_SCALAR ? given[at] : (void *)&memory[at];
    }
    int status;
    if (!k->grid[0] || !k->grid[1] || !k->grid[2]) continue;
    const unsigned g[3] = {(unsigned)k->grid[0], (unsigned)k->grid[1], (unsigned)k->grid[2]};
    const unsigned b[3] = {(unsigned)k->block[0], (unsigned)k->block[1], (unsigned)k->block[2]};
    if (here->clusters[n]) {
      tir_attribute cluster = {TIR_CU_CLUSTER, 0, {(uint32_t)k->cluster, 1, 1}};
      const tir_config how = {{g[0], g[1], g[2]}, {b[0], b[1], b[2]}, here->dynamic[n], stream, &cluster, 1};
      if (!cu.cuLaunchKernelEx) return tir_failed(TIR_LAUNCH, k->name, "the driver is older than clusters", 0);
      status = cu.cuLaunchKernelEx(&how, here->functions[n], args, NULL);
    } else {
      status = cu.cuLaunchKernel(here->functions[n], g[0], g[1], g[2], b[0], b[1], b[2], here->dynamic[n], stream, args,
                                 NULL);
    }
    if (status) return tir_failed(TIR_LAUNCH, k->name, "it was not launched", status);
  }
  return 0;
}

static int tir_run(const tir_ready *here, void *stream, void *const *given) {
  tir_shaped shaped;
  const tir_program *p = tir_at(here->program, given, &shaped);
  uint64_t memory[TIR_MOST_ARRAYS] = {0}, room = 0;
  size_t begin[TIR_MOST_ARRAYS], total = 0;
  unsigned char mine[TIR_MOST_ARRAYS] = {0};
  int code = 0, status = 0, waits = 0, at_once = 0;
  for (int n = 0; n < TIR_MOST_ARRAYS && n < p->arrays; ++n) {
    const tir_array *a = &p->array[n];
    if (a->role == TIR_SCALAR) continue;
    if (a->role == TIR_CONSTANT) {
      memory[n] = here->constants[n];
      mine[n] = tir_constants[a->number] != tir_shipped[a->number];
    } else if (n < TIR_GIVEN) {
      memory[n] = (uint64_t)(uintptr_t)given[n];
      mine[n] = a->bytes && tir_of_host(memory[n]);
      waits |= mine[n];
      if (!mine[n] && memory[n] % a->align)
        return tir_failed(TIR_ALIGNMENT, "an address of the device", "no multiple of what NAME.h says", 0);
    } else {
      mine[n] = 1;
    }
    begin[n] = total;
    if (mine[n]) total += (a->bytes + 255) / 256 * 256;
  }
  if ((code = tir_indices(given, mine))) return code;
  if (total) {
    status = cu.cuMemAllocAsync && cu.cuMemFreeAsync ? cu.cuMemAllocAsync(&room, total, stream) : TIR_CU_NOT_SUPPORTED;
    if (status == TIR_CU_NOT_SUPPORTED) at_once = 1, status = cu.cuMemAlloc_v2(&room, total);
    if (status) return tir_failed(TIR_MEMORY, "the workspace", "it has no room on the device", status);
  }
  for (int n = 0; n < TIR_MOST_ARRAYS && n < p->arrays && !status; ++n) {
    const tir_array *a = &p->array[n];
    if (!mine[n]) continue;
    memory[n] = room + begin[n];
    const void *from = a->role == TIR_INPUT ? given[n] : a->role == TIR_CONSTANT ? tir_constants[a->number] : NULL;
    if (from && a->bytes) status = cu.cuMemcpyHtoDAsync_v2(memory[n], from, a->bytes, stream);
  }
  if (status) code = tir_failed(TIR_LAUNCH, "an array", "it cannot be copied", status);
  if (!code) code = tir_launched(here, p, stream, given, memory);
  for (int n = 0; n < TIR_GIVEN && !code; ++n)
    if (p->array[n].role == TIR_OUTPUT && mine[n] &&
        (status = cu.cuMemcpyDtoHAsync_v2(given[n], memory[n], p->array[n].bytes, stream)))
      code = tir_failed(TIR_LAUNCH, "a result", "it cannot be read", status);
  if ((waits || at_once) && (status = cu.cuStreamSynchronize(stream)) && !code)
    code = tir_failed(TIR_LAUNCH, "the kernels", "they failed", status);
  if (room) status = at_once ? cu.cuMemFree_v2(room) : cu.cuMemFreeAsync(room, stream);
  return code;
}

static int tir_called(const tir_call *call, void *const *buffers) {
  tir_call known;
  if (call && !(call = tir_known(call, &known))) return tir_failed(TIR_SIZE, "call->size", "it is not set", 0);
  void *const stream = call ? call->stream : NULL;
  tir_ready *here;
  int pushed = 0;
  pthread_mutex_lock(&tir_lock);
  int code = tir_loaded();
  if (!code) code = tir_entered(stream, &pushed);
  if (!code) code = tir_made(&here);
  pthread_mutex_unlock(&tir_lock);
  if (!code && buffers) code = tir_run(here, stream, buffers);
  if (pushed) cu.cuCtxPopCurrent_v2(&(void *){NULL});
  return code;
}

int TIR_FUNCTION(load)(const tir_call *call) { return tir_called(call, NULL); }

int TIR_NAME(const tir_call *call, void *const *buffers) {
  const int code = tir_checked(buffers, 1);
  return code ? code : tir_called(call, buffers);
}
