/* --- what every host does: which arrays there are, what they are checked for, what is said of an error */
enum { TIR_INPUT, TIR_SCALAR, TIR_OUTPUT, TIR_SPACE, TIR_CONSTANT };

typedef struct {
  size_t bytes, align, element;
  int role, number; /* number: of a constant */
} tir_array;

typedef struct { /* of a tensor map: extents, strides in bytes, boxes and steps, the innermost first */
  int array, rank, kind, swizzle, pixels, small; /* pixels: whether it goes through an image pixel by pixel */
  uint64_t shape[5], strides[5];
  uint32_t box[5], steps[5];
  int lower[2], upper[2];
} tir_map;

typedef struct {
  const char *name;
  int count;
  const int *args; /* places in the arrays; -1 - n for map n */
  size_t grid[3], block[3], shared;
  int cluster;
} tir_kernel;

typedef struct {
  const char *text;
  int arrays, kernels, arch, special; /* arch: the least that runs the text; special: no other does */
  const tir_array *array;
  const tir_kernel *kernel;
  const tir_map *map;
} tir_program;

typedef struct { /* a program at the extents of a call */
  tir_program program;
  tir_array array[TIR_MOST_ARRAYS];
  tir_kernel kernel[TIR_MOST_KERNELS];
} tir_shaped;

typedef struct { /* what was compiled ahead; the last one has no data */
  int ptx, arch, special, program;
  const void *data;
} tir_image;

static _Thread_local char tir_words[1024];

static int tir_failed(int code, const char *what, const char *why, int status) {
  if (status) snprintf(tir_words, sizeof tir_words, "%s: %s (%d)", what, why, status);
  else snprintf(tir_words, sizeof tir_words, "%s: %s", what, why);
  return code;
}

/* A library by the first of these names that loads; several are divided by colons. */
static void *tir_library(const char *names) {
  char name[256];
  while (*names) {
    const size_t length = strcspn(names, ":");
    if (length && length < sizeof name) {
      memcpy(name, names, length);
      name[length] = 0;
      void *found = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (found) return found;
    }
    names += length + (names[length] == ':');
  }
  return NULL;
}

static pthread_mutex_t tir_lock = PTHREAD_MUTEX_INITIALIZER;
