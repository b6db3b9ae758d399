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
  size_t bytes, align;       /* of the whole array; of its first byte */
  int64_t limit;             /* its elements are indices below this; 0: no indices */
  int rank;
  const int64_t *shape;
} door_argument;

/* It includes the kernel's header, and defines door_arguments, inputs and scalars first, then outputs:
   DOOR_ARGUMENTS, DOOR_GIVEN of them to be given. DOOR_NAME is the kernel's name, DOOR_KERNEL the kernel, DOOR_WHY what
   says in words what its last error of this thread was, where there is such a function. */
#include "door_table.h"

enum { DOOR_NO_MEMORY = -1, DOOR_WORDS = 1152 };

/* The kernel, whatever its name is: locals elsewhere may be called the same. */
static inline int door_kernel(const tir_call *door_how, void *const *door_buffers) {
  return DOOR_KERNEL(door_how, door_buffers);
}

/* "float32 (33, 17)", for messages. */
static inline const char *door_expected(const door_argument *a, char *text, size_t room) {
  size_t used = (size_t)snprintf(text, room, a->scalar ? "a %s number" : "%s (", a->dtype);
  for (int n = 0; n < a->rank && used < room; ++n)
    used += (size_t)snprintf(text + used, room - used, n ? ", %lld" : "%lld", (long long)a->shape[n]);
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
static inline const door_argument *door_index_wrong(void *const *buffers) {
  for (int p = 0; p < DOOR_GIVEN; ++p) {
    const door_argument *a = &door_arguments[p];
    const size_t count = a->limit ? a->bytes / ((size_t)a->bits / 8) : 0;
    for (size_t n = 0; n < count; ++n) {
      const int64_t x = door_integer(a, (const char *)buffers[p], n);
      if (x < 0 || x >= a->limit) return a;
    }
  }
  return NULL;
}

/* Run the kernel; on a copy of what does not start where it has to. 0, an error of the kernel, or DOOR_NO_MEMORY. */
static inline int door_call(const tir_call *call, void *const *given) {
  size_t room = 0;
  for (int n = 0; n < DOOR_ARGUMENTS; ++n)
    if ((uintptr_t)given[n] % door_arguments[n].align)
      room += door_arguments[n].bytes + door_arguments[n].align;
  if (!room) return door_kernel(call, given);
  void *buffers[DOOR_ARGUMENTS];
  char *memory = (char *)malloc(room), *next = memory;
  if (!memory) return DOOR_NO_MEMORY;
  for (int n = 0; n < DOOR_ARGUMENTS; ++n) {
    const door_argument *a = &door_arguments[n];
    buffers[n] = given[n];
    if ((uintptr_t)given[n] % a->align == 0) continue;
    next += (a->align - (uintptr_t)next % a->align) % a->align;
    buffers[n] = next;
    if (n < DOOR_GIVEN) memcpy(next, given[n], a->bytes);
    next += a->bytes;
  }
  const int code = door_kernel(call, buffers);
  for (int n = DOOR_GIVEN; n < DOOR_ARGUMENTS; ++n)
    if (buffers[n] != given[n]) memcpy(given[n], buffers[n], door_arguments[n].bytes);
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
