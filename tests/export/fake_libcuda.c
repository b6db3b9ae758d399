/* The CUDA driver as far as a host program needs it, in memory of the host. Each call is a line of $FAKE_LOG. The kernels
 * are those of fake_cuda.py: W = B (pack), C = A + W (add), and C = scale * A + I[0] (scaled).
 * FAKE_CC: compute capability;  FAKE_REFUSE: "cubin", "ptx" or both, images that it does not take;  FAKE_POOLS=0: a
 * driver without memory in stream order;  FAKE_CLUSTER: the cluster that functions say they need;  FAKE_STATIC: bytes
 * of block memory that they declare;  FAKE_FAIL: the name of a function that fails. */
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 16 * 32, MOST = 4096 };
static struct { uintptr_t at; size_t size; } held[MOST];
static void *current = NULL;

static void note(const char *format, ...) {
  const char *path = getenv("FAKE_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  va_list values;
  va_start(values, format);
  vfprintf(file, format, values);
  va_end(values);
  fputc('\n', file);
  fclose(file);
}

static const char *said(const char *name, const char *otherwise) {
  const char *found = getenv(name);
  return found && *found ? found : otherwise;
}

#define ENTER(name) \
  if (!strcmp(said("FAKE_FAIL", ""), #name)) return note("%s fails", #name), 999

int cuInit(unsigned flags) { ENTER(cuInit); note("cuInit %u", flags); return 0; }
int cuDriverGetVersion(int *version) { *version = atoi(said("FAKE_VERSION", "13000")); return 0; }
int cuDeviceGet(int *device, int n) { *device = 70 + n; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  const int cc = atoi(said("FAKE_CC", "80"));
  note("attribute %d of device %d", attribute, device);
  *value = attribute == 75 ? cc / 10 : attribute == 76 ? cc % 10 : -1;
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  note("primary context of device %d", device);
  *context = (void *)(uintptr_t)0x1000;
  return 0;
}
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int fake_set_current(void *context) { current = context; return 0; }
int cuCtxPushCurrent_v2(void *context) { note("push %p", context); current = context; return 0; }
int cuCtxPopCurrent_v2(void **context) { note("pop %p", current); *context = current; current = NULL; return 0; }
int cuCtxGetDevice(int *device) { *device = 70; return 0; }
int cuStreamGetCtx(void *stream, void **context) { (void)stream; *context = (void *)(uintptr_t)0x2000; return 0; }
int cuStreamSynchronize(void *stream) { ENTER(cuStreamSynchronize); note("synchronise %p", stream); return 0; }
int cuModuleLoadData(void **module, const void *data) {
  ENTER(cuModuleLoadData);
  char text[33] = "";
  for (int n = 0; n < 32 && ((const char *)data)[n] >= 32; ++n) text[n] = ((const char *)data)[n];
  const char *kind = strstr(text, "cubin") ? "cubin" : strstr(text, "ptx") ? "ptx" : "other";
  if (strstr(said("FAKE_REFUSE", ""), kind)) return note("refused %s", text), 218;
  note("loaded %s", text);
  *module = (void *)(uintptr_t)0x77;
  return 0;
}
int cuModuleUnload(void *module) { (void)module; note("unloaded"); return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  ENTER(cuModuleGetFunction);
  (void)module;
  return (*function = strdup(name)) == NULL;
}
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  (void)function;
  if (attribute == 11 && !strcmp(said("FAKE_CLUSTER", ""), "unknown")) return 1;
  *value = attribute == 1 ? atoi(said("FAKE_STATIC", "0")) : attribute == 11 ? atoi(said("FAKE_CLUSTER", "0")) : -1;
  return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  note("attribute %d of %s is %d", attribute, (const char *)function, value);
  return 0;
}

static int made(uint64_t *address, size_t bytes) {
  for (int n = 0; n < MOST; ++n)
    if (!held[n].at) {
      void *p = aligned_alloc(256, (bytes + 255) / 256 * 256);
      memset(p, 0xcd, bytes);
      held[n].at = *address = (uintptr_t)p;
      held[n].size = bytes;
      return 0;
    }
  return 2;
}
static int gone(uint64_t address) {
  for (int n = 0; n < MOST; ++n)
    if (held[n].at == address) return held[n].at = 0, free((void *)(uintptr_t)address), 0;
  return note("no such memory"), 1;
}
int fake_held(void) {
  int count = 0;
  for (int n = 0; n < MOST; ++n) count += held[n].at != 0;
  return count;
}
static int on_device(uint64_t address, size_t bytes) {
  for (int n = 0; n < MOST; ++n)
    if (held[n].at && address >= held[n].at && address + bytes <= held[n].at + held[n].size) return 1;
  return 0;
}
int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  ENTER(cuMemAlloc_v2);
  note("allocate %zu", bytes);
  return made(address, bytes);
}
int cuMemFree_v2(uint64_t address) { note("free"); return gone(address); }
int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream) {
  ENTER(cuMemAllocAsync);
  if (!strcmp(said("FAKE_POOLS", ""), "0")) return 801;
  note("allocate %zu on %p", bytes, stream);
  return made(address, bytes);
}
int cuMemFreeAsync(uint64_t address, void *stream) { note("free on %p", stream); return gone(address); }
int cuPointerGetAttribute(void *value, int attribute, uint64_t address) {
  if (!on_device(address, 1)) return 1;
  if (attribute != 2) return 1;
  const unsigned device = 2;
  memcpy(value, &device, sizeof device);
  return 0;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
  note("copy %zu in", bytes);
  if (!on_device(to, bytes)) return note("outside"), 1;
  memcpy((void *)(uintptr_t)to, from, bytes);
  return 0;
}
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
  ENTER(cuMemcpyHtoDAsync_v2);
  note("copy %zu in on %p", bytes, stream);
  if (!on_device(to, bytes)) return note("outside"), 1;
  memcpy((void *)(uintptr_t)to, from, bytes);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
  note("copy %zu out on %p", bytes, stream);
  if (!on_device(from, bytes)) return note("outside"), 1;
  memcpy(to, (void *)(uintptr_t)from, bytes);
  return 0;
}

static float *floats(const void *argument, size_t bytes) { /* of an address, or of a map, which begins with one */
  uint64_t address;
  memcpy(&address, argument, 8);
  if (!on_device(address, bytes)) return note("no memory of the device"), NULL;
  return (float *)(uintptr_t)address;
}
static int run(const char *name, void **args) {
  const size_t all = N * sizeof(float);
  if (!strcmp(name, "pack")) {
    const float *b = floats(args[0], all);
    float *w = floats(args[1], all);
    if (!b || !w || ((uintptr_t)args[0] | (uintptr_t)args[1]) % 64) return 700;
    for (int n = 0; n < N; ++n) w[n] = b[n];
  } else if (!strcmp(name, "add")) {
    const float *a = floats(args[0], all), *w = floats(args[2], all);
    float *c = floats(args[1], all);
    if (!a || !w || !c) return 700;
    for (int n = 0; n < N; ++n) c[n] = a[n] + w[n];
  } else if (!strcmp(name, "scaled")) {
    const float *a = floats(args[0], all), *i = floats(args[2], 4);
    float *c = floats(args[1], all), scale;
    if (!a || !i || !c) return 700;
    memcpy(&scale, args[3], sizeof scale);
    for (int n = 0; n < N; ++n) c[n] = scale * a[n] + (float)*(const int32_t *)i;
  }
  return 0;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **args, void **extra) {
  ENTER(cuLaunchKernel);
  note("launch %s %u,%u,%u of %u,%u,%u with %u on %p%s", (char *)function, x, y, z, bx, by, bz, shared, stream,
       extra ? " extra" : "");
  return run(function, args);
}
typedef struct { uint32_t id, pad, value[16]; } attribute;
typedef struct { unsigned x, y, z, bx, by, bz, shared; void *stream; attribute *attrs; unsigned count; } config;
int cuLaunchKernelEx(const config *c, void *function, void **args, void **extra) {
  (void)extra;
  note("launch %s %u,%u,%u of %u,%u,%u with %u on %p: %u attribute, %u is %u,%u,%u", (char *)function, c->x, c->y, c->z,
       c->bx, c->by, c->bz, c->shared, c->stream, c->count, c->attrs[0].id, c->attrs[0].value[0], c->attrs[0].value[1],
       c->attrs[0].value[2]);
  return run(function, args);
}

static void numbers(char *text, size_t room, const char *what, int wide, int count, const void *values) {
  size_t used = strlen(text);
  used += (size_t)snprintf(text + used, room - used, " %s", what);
  for (int n = 0; n < count && used < room; ++n) {
    const long long value = wide ? (long long)((const uint64_t *)values)[n] : ((const int32_t *)values)[n];
    used += (size_t)snprintf(text + used, room - used, " %lld", value);
  }
}
static int mapped(void *map, void *address) {
  if ((uintptr_t)map % 64 || (uintptr_t)address % 16) return note("not aligned"), 1;
  memset(map, 0xff, 128);
  memcpy(map, &address, 8);
  return 0;
}
int cuTensorMapEncodeTiled(void *map, int kind, uint32_t rank, void *address, const uint64_t *shape,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  ENTER(cuTensorMapEncodeTiled);
  char text[512] = "";
  numbers(text, sizeof text, "shape", 1, (int)rank, shape);
  numbers(text, sizeof text, "strides", 1, (int)rank - 1, strides);
  numbers(text, sizeof text, "box", 0, (int)rank, box);
  numbers(text, sizeof text, "steps", 0, (int)rank, steps);
  note("tiles of %d:%s, %d %d %d %d", kind, text, interleave, swizzle, promotion, fill);
  return mapped(map, address);
}
int cuTensorMapEncodeIm2col(void *map, int kind, uint32_t rank, void *address, const uint64_t *shape,
                            const uint64_t *strides, const int *lower, const int *upper, uint32_t channels,
                            uint32_t pixels, const uint32_t *steps, int interleave, int swizzle, int promotion,
                            int fill) {
  char text[512] = "";
  numbers(text, sizeof text, "shape", 1, (int)rank, shape);
  numbers(text, sizeof text, "strides", 1, (int)rank - 1, strides);
  numbers(text, sizeof text, "lower", 0, (int)rank - 2, lower);
  numbers(text, sizeof text, "upper", 0, (int)rank - 2, upper);
  numbers(text, sizeof text, "steps", 0, (int)rank, steps);
  note("pixels of %d:%s, %u %u, %d %d %d %d", kind, text, channels, pixels, interleave, swizzle, promotion, fill);
  return mapped(map, address);
}
