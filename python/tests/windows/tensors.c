/* Makes the functions of a pluggable allocator those of PyTorch's CPU tensors. A PyTorch for the CPU has no torch_hip.dll,
 * which calls them for tensors on a GPU; here c10.dll calls them, through an object with the layout of a c10::Allocator. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

typedef void *(*Allocate)(size_t, int, void *);
typedef void (*Free)(void *, size_t, int, void *);
static Allocate allocate_from;
static Free free_to;

struct Block {
    void *data;
    size_t size;
};

/* c10::DataPtr: the address, how its owner is freed, the owner, and a c10::Device (the CPU, without an index). */
struct DataPtr {
    void *data;
    void (*deleter)(void *);
    struct Block *owner;
    uint16_t device;
};

static void delete_block(void *owner) {
    struct Block *block = owner;
    free_to(block->data, block->size, 0, NULL);
    free(block);
}

static void *destroy(void *self, unsigned how) { return self; }

static struct DataPtr *allocate(void *self, struct DataPtr *result, size_t size) {
    struct DataPtr made = {NULL, delete_block, NULL, 0xff00};
    if (size > 0) {
        /* This may throw. */
        made.data = allocate_from(size, 0, NULL);
        made.owner = malloc(sizeof *made.owner);
        made.owner->data = made.data;
        made.owner->size = size;
    }
    *result = made;
    return result;
}

static uint8_t is_simple(void *self, const struct DataPtr *data) { return 0; }

static void *raw_deleter(void *self) { return NULL; }

static void copy(void *self, void *to, const void *from, size_t size) { memcpy(to, from, size); }

static void *const functions[] = {destroy, allocate, is_simple, raw_deleter, copy};
static void *const *const allocator = functions;

__declspec(dllexport) int install(Allocate allocate_function, Free free_function) {
    typedef void (*SetAllocator)(int8_t, const void *, uint8_t);
    const char *name = "?SetAllocator@c10@@YAXW4DeviceType@1@PEAUAllocator@1@E@Z";
    SetAllocator set = (SetAllocator)GetProcAddress(GetModuleHandleA("c10.dll"), name);
    if (!set) return 0;
    allocate_from = allocate_function;
    free_to = free_function;
    set(0, &allocator, 255);
    return 1;
}
