/* What the doors of this folder have in common: the kernel's arguments, the checks that need their values, the call. */
#ifndef TIR_DOOR_H
#define TIR_DOOR_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An argument as frameworks see it. Scalars of narrow floats are float32 for the kernel: those are the codes here. */
typedef struct {
  const char *name, *dtype;  /* dtype: of its elements, as the manifest calls it */
  int scalar;                /* whether it is a number */
  int dl, bits, xla, onnx;   /* DLPack's type code and bits, XLA's PrimitiveType, ONNX's TensorProto.DataType */
  size_t align;              /* of its first byte */
  int64_t limit;             /* its elements are indices below this; 0: no indices; INT64_MAX: some, which the kernel looks at */
  int rank;
  const int64_t *shape;      /* here and in limit -1 - k is number k of the extents that a call decides */
  const char *const *names;  /* of extents, for messages */
} door_argument;

/* It includes the kernel's header, and defines door_arguments, inputs and scalars first, then outputs:
   DOOR_ARGUMENTS, DOOR_GIVEN of them to be given. DOOR_NAME is the kernel's name, DOOR_KERNEL the kernel, DOOR_WHY what
   says in words what its last error of this thread was, where there is such a function; DOOR_DIMS how many dims it has,
   DOOR_TOLD and DOOR_EXTENTS the functions about them, DOOR_OPEN how many extents the latter gives; DOOR_RANK the
   most dimensions of an argument. */
#include "door_table.h"

enum { DOOR_NO_MEMORY = -1, DOOR_WORDS = 1152, DOOR_BUFFERS = DOOR_ARGUMENTS + DOOR_DIMS };

/* The arguments at the extents of a call. */
typedef struct {
  int64_t dims[DOOR_DIMS + 1];
  struct { int64_t shape[DOOR_RANK + 1], limit; size_t bytes; } of[DOOR_ARGUMENTS];
} door_sizes;

/* Read the dims off shapes of what is given, as many extents as the arguments have: 0, or -1 and what is wrong. */
static inline int door_sized(const int64_t *const *shapes, door_sizes *sizes, char *why, size_t room) {
  int64_t extents[DOOR_OPEN + 1] = {0};
#if DOOR_DIMS
  if (DOOR_TOLD(shapes, sizes->dims, why, room)) return -1;
  DOOR_EXTENTS(sizes->dims, extents);
#else
  (void)shapes, (void)why, (void)room;
#endif
  for (int p = 0; p < DOOR_ARGUMENTS; ++p) {
    const door_argument *a = &door_arguments[p];
    sizes->of[p].bytes = (size_t)a->bits / 8;
    sizes->of[p].limit = a->limit < 0 ? extents[-1 - a->limit] : a->limit;
    for (int n = 0; n < a->rank; ++n) {
      sizes->of[p].shape[n] = a->shape[n] < 0 ? extents[-1 - a->shape[n]] : a->shape[n];
      sizes->of[p].bytes *= (size_t)sizes->of[p].shape[n];
    }
  }
  return 0;
}

/* The addresses of dims, after those of arguments. */
static inline void door_give_dims(door_sizes *sizes, void **buffers) {
  for (int n = 0; n < DOOR_DIMS; ++n) buffers[DOOR_ARGUMENTS + n] = &sizes->dims[n];
}

/* The kernel, whatever its name is: locals elsewhere may be called the same. */
static inline int door_kernel(const tir_call *door_how, void *const *door_buffers) {
  return DOOR_KERNEL(door_how, door_buffers);
}

/* "float32 (33, 17)", or "float32 (n, 17)", for messages. */
static inline const char *door_expected(const door_argument *a, char *text, size_t room) {
  size_t used = (size_t)snprintf(text, room, a->scalar ? "a %s number" : "%s (", a->dtype);
  for (int n = 0; n < a->rank && used < room; ++n)
    used += (size_t)snprintf(text + used, room - used, n ? ", %s" : "%s", a->names[n]);
  if (!a->scalar && used < room) snprintf(text + used, room - used, a->rank == 1 ? ",)" : ")");
  return text;
}

/* One element of an array of integers. */
static inline int64_t door_integer(const door_argument *a, const char *data, size_t n) {
  if (a->bits == 8) {
    uint8_t x;
    memcpy(&x, data + n, 1);
    return a->dl ? (int64_t)x : (int64_t)(int8_t)x;
  }
  if (a->bits == 16) {
    uint16_t x;
    memcpy(&x, data + 2 * n, 2);
    return a->dl ? (int64_t)x : (int64_t)(int16_t)x;
  }
  if (a->bits == 32) {
    uint32_t x;
    memcpy(&x, data + 4 * n, 4);
    return a->dl ? (int64_t)x : (int64_t)(int32_t)x;
  }
  int64_t x; /* above its half an unsigned one is negative here: out of range as well */
  memcpy(&x, data + 8 * n, 8);
  return x;
}

/* Whether all indices are in range: the name of the argument where one is not, else NULL. */
static inline const door_argument *door_index_wrong(void *const *buffers, const door_sizes *sizes) {
  for (int p = 0; p < DOOR_GIVEN; ++p) {
    const door_argument *a = &door_arguments[p];
    const size_t count = a->limit && a->limit != INT64_MAX ? sizes->of[p].bytes / ((size_t)a->bits / 8) : 0;
    for (size_t n = 0; n < count; ++n) {
      const int64_t x = door_integer(a, (const char *)buffers[p], n);
      if (x < 0 || x >= sizes->of[p].limit) return a;
    }
  }
  return NULL;
}

/* Run the kernel; on a copy of what does not start where it has to. 0, an error of the kernel, or DOOR_NO_MEMORY. */
static inline int door_call(const tir_call *call, void *const *given, const door_sizes *sizes) {
  size_t room = 0;
  for (int n = 0; n < DOOR_ARGUMENTS; ++n)
    if ((uintptr_t)given[n] % door_arguments[n].align)
      room += sizes->of[n].bytes + door_arguments[n].align;
  if (!room) return door_kernel(call, given);
  void *buffers[DOOR_BUFFERS];
  char *memory = (char *)malloc(room), *next = memory;
  if (!memory) return DOOR_NO_MEMORY;
  memcpy(buffers, given, sizeof buffers);
  for (int n = 0; n < DOOR_ARGUMENTS; ++n) {
    const size_t align = door_arguments[n].align, bytes = sizes->of[n].bytes;
    if ((uintptr_t)given[n] % align == 0) continue;
    next += (align - (uintptr_t)next % align) % align;
    buffers[n] = next;
    if (n < DOOR_GIVEN) memcpy(next, given[n], bytes);
    next += bytes;
  }
  const int code = door_kernel(call, buffers);
  for (int n = DOOR_GIVEN; n < DOOR_ARGUMENTS; ++n)
    if (buffers[n] != given[n]) memcpy(given[n], buffers[n], sizes->of[n].bytes);
  free(memory);
  return code;
}

/* What an error of door_call means, in the thread that had it. */
static inline const char *door_said(int code, char *text, size_t room) {
  if (code == DOOR_NO_MEMORY) return DOOR_NAME ": out of memory for copies of arrays that are not aligned";
#ifdef DOOR_WHY
  snprintf(text, room, "%s: %s", DOOR_NAME, DOOR_WHY());
#else
  snprintf(text, room, "%s: error %d, see %s.h", DOOR_NAME, code, DOOR_NAME);
#endif
  return text;
}

#endif
