/* --- extents that a call decides */
#include <stdio.h>

typedef struct {
  const char *name;
  int64_t low, high;
} tir_dim;

typedef struct { /* a place in the shape of an input: the extent there is a times that of the dim, and b */
  int dim, array, axis;
  int64_t a, b;
  const char *place;
} tir_teller;

enum { TIR_IN_RANGE, TIR_OUTSIDE, TIR_DIFFERENT };

/* Read off shapes what dims are: one itself comes before expressions of it, of which the first that a whole number
   solves tells it. */
static int tir_told(const tir_dim *known, int count, const tir_teller *tellers, int places,
                    const int64_t *const *shapes, int64_t *dims, char *why, size_t room) {
  for (int d = 0; d < count; ++d) {
    const char *by = NULL;
    for (const tir_teller *t = tellers; t != tellers + places; ++t) {
      if (t->dim != d) continue;
      const int64_t have = shapes[t->array][t->axis];
      if (!by && (have - t->b) % t->a == 0) {
        by = t->place, dims[d] = (have - t->b) / t->a;
      } else if (by && t->a == 1 && !t->b && dims[d] != have) {
        snprintf(why, room, "%s is %lld in %s and %lld in %s: it is one extent", known[d].name, (long long)dims[d], by,
                 (long long)have, t->place);
        return TIR_DIFFERENT;
      }
    }
    if (by && dims[d] >= known[d].low && dims[d] <= known[d].high) continue;
    if (by)
      snprintf(why, room, "%s: %s is %lld to %lld, got %lld", by, known[d].name, (long long)known[d].low,
               (long long)known[d].high, (long long)dims[d]);
    else
      snprintf(why, room, "no shape tells %s", known[d].name);
    return TIR_OUTSIDE;
  }
  return TIR_IN_RANGE;
}
