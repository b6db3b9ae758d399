/* NVRTC as far as a host program needs it: what it makes is "text ARCHITECTURE TEXT". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program { char text[64], made[160]; };

int nvrtcCreateProgram(void **made, const char *text, const char *name, int n, const char *const *a, const char *const *b) {
  (void)name, (void)n, (void)a, (void)b;
  struct program *p = calloc(1, sizeof *p);
  snprintf(p->text, sizeof p->text, "%.*s", (int)strcspn(text, "\n"), text);
  *made = p;
  return 0;
}
int nvrtcCompileProgram(void *program, int n, const char *const *options) {
  struct program *p = program;
  for (int k = 0; k < n; ++k) {
    const char *at = strstr(options[k], "--gpu-architecture=");
    if (at) snprintf(p->made, sizeof p->made, "text %.64s %.64s", strchr(at, '=') + 1, p->text);
  }
  return 0;
}
int nvrtcGetProgramLogSize(void *program, size_t *size) { (void)program; *size = 0; return 0; }
int nvrtcGetProgramLog(void *program, char *log) { (void)program, (void)log; return 0; }
int nvrtcGetCUBINSize(void *program, size_t *size) { *size = sizeof ((struct program *)program)->made; return 0; }
int nvrtcGetCUBIN(void *program, char *made) {
  memcpy(made, ((struct program *)program)->made, sizeof ((struct program *)program)->made);
  return 0;
}
int nvrtcDestroyProgram(void **program) { free(*program); *program = NULL; return 0; }
