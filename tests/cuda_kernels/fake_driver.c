// A libcuda that notes what it is asked for, so that our calls and those of CuPy can be seen
// where there is no driver: that structures are laid out and arguments passed as a real one wants.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    struct { int id; char padding[4]; int value; } *attributes;
    unsigned n_attributes;
} Config;

static char note[1024];

const char *last_note(void) { return note; }

// Of two parameters: a pointer and an int.
static void note_launch(const char *how, void *function, const unsigned *grid, const unsigned *block,
                        unsigned shared, void *stream, void **parameters) {
    snprintf(note, sizeof note, "%s %p %u,%u,%u %u,%u,%u %u %p %llx %d", how, function, grid[0], grid[1], grid[2],
             block[0], block[1], block[2], shared, stream, *(unsigned long long *)parameters[0],
             *(int *)parameters[1]);
}
int cuLaunchKernelEx(const Config *config, void *function, void **parameters, void **extra) {
    char how[64];
    if (config->n_attributes)
        snprintf(how, sizeof how, "ex[%u: %d=%d]%s", config->n_attributes, config->attributes->id,
                 config->attributes->value, extra ? " extra" : "");
    else
        snprintf(how, sizeof how, "ex[0]%s", extra ? " extra" : "");
    note_launch(how, function, config->grid, config->block, config->shared, config->stream, parameters);
    return config->grid[0] == 666 ? 1 : 0;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = (void *)0x2222;
    return module == (void *)0x1111 && !strcmp(name, "some_kernel") ? 0 : 500;  // CUDA_ERROR_NOT_FOUND
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
    snprintf(note, sizeof note, "attribute %p %d=%d", function, attribute, value);
    return 0;
}
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuGetErrorName(int error, const char **text) { *text = "CUDA_ERROR_PLANTED"; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "planted"; return 0; }

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    *function = library ? dlsym(library, name) : NULL;
    if (status) *status = *function ? 0 : 1;
    return *function ? 0 : 500;  // CUDA_ERROR_NOT_FOUND
}
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
