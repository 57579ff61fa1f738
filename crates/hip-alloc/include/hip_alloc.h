/* The C interface of libhip_alloc.so, version 1.
 *
 * Made for torch.cuda.memory.CUDAPluggableAllocator (hip_alloc_malloc and
 * hip_alloc_free have the signatures it calls), and for any other program.
 * Every function may be called from any thread, but from no signal handler, in which fork()
 * must not be called either: it may have interrupted the library, with a lock taken. A stream must live as long as memory
 * that was used on it, freed or not, as PyTorch's own streams do. Settings come from the
 * environment: HIP_ALLOC_CONF, HIP_ALLOC_TRACE; they are read at the first call that can
 * read them.
 *
 * Functions that return int return 0 when they worked, and otherwise one of the
 * codes below, after writing a message to standard error (the first 20 times).
 */
#ifndef HIP_ALLOC_H
#define HIP_ALLOC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HIP_ALLOC_ABI_VERSION 1u

/* The device index of host memory: the CPU allocator. Any other device is an
 * accelerator, numbered as the runtime numbers it. */
#define HIP_ALLOC_HOST (-1)

#define HIP_ALLOC_OK 0
#define HIP_ALLOC_ERROR_DEVICE 1   /* no such device, or it cannot be used */
#define HIP_ALLOC_ERROR_ARGUMENT 2 /* a null pointer, or a number out of range */
#define HIP_ALLOC_ERROR_DRIVER 3   /* the runtime refused a call */
#define HIP_ALLOC_ERROR_IO 4       /* a file could not be written */

/* Memory of at least `size` bytes, which work on `stream` may use at once. Zero
 * bytes get an address of their own. Never returns NULL: out of memory is thrown
 * as c10::OutOfMemoryError where libc10 is loaded, and as std::bad_alloc
 * elsewhere; a device that cannot be used, or fails, as c10::Error or
 * std::runtime_error. Call it only from code that C++ exceptions may pass through. */
void *hip_alloc_malloc(size_t size, int device, void *stream);

/* Gives memory back. `stream` is the stream it was allocated on; work that is
 * already on that stream may still use it. NULL does nothing. A pointer that is
 * not live is reported on standard error, and nothing else happens. */
void hip_alloc_free(void *ptr, size_t size, int device, void *stream);

/* Work on `stream` uses `ptr` too: it is not reused before that work is done. */
void hip_alloc_record_stream(void *ptr, void *stream);

/* How much could still be allocated, and how much this process could hold in
 * all, in bytes. On unified memory this counts the machine's memory honestly:
 * *free is never above *total. */
int hip_alloc_mem_info(int device, size_t *free, size_t *total);

struct hip_alloc_stats {
  uint64_t live_bytes;       /* asked for and not freed */
  uint64_t live_peak_bytes;  /* highest since the start or the last reset */
  uint64_t held_bytes;       /* taken from the driver */
  uint64_t held_peak_bytes;  /* highest since the start or the last reset */
  uint64_t live_allocations; /* requests that are live */
  uint64_t allocations;      /* requests served */
  uint64_t frees;            /* requests freed */
  uint64_t driver_allocs;    /* times the driver gave memory */
  uint64_t driver_frees;     /* times memory was given back */
  uint64_t out_of_memory;    /* requests refused */
  uint64_t pending_bytes;    /* freed, but another stream may still use it */
  uint64_t capacity_bytes;   /* what hip_alloc_mem_info calls total */
  /* Since the first release of version 1: */
  uint64_t allocated_bytes;       /* ever asked for; less live_bytes, ever freed */
  uint64_t driver_alloc_bytes;    /* ever taken; less held_bytes, ever given back */
  uint64_t live_allocations_peak; /* highest since the start or the last reset */
  uint64_t driver_blocks_peak;    /* the same, of driver_allocs - driver_frees */
  uint64_t active_peak_bytes;     /* the same, of live_bytes + pending_bytes */
  uint64_t alloc_retries;         /* times the driver refused and was asked again, with less held */
  uint64_t stream_syncs;          /* times all streams were waited for, to give memory back */
  uint64_t driver_free_bytes;     /* ever given back to the driver */
  uint64_t driver_nanoseconds;    /* in calls that take memory from the driver and give it back */
  uint64_t give_backs;            /* times kept memory went back since it was needed, or unused */
};

/* Fills the first min(out_size, sizeof(struct hip_alloc_stats)) bytes of *out, so
 * that an older program works with a newer library. */
int hip_alloc_stats(int device, struct hip_alloc_stats *out, size_t out_size);

/* Starts the peaks again from what is live and held now. */
int hip_alloc_reset_peaks(int device);

/* Gives empty blocks back until at most `keep_bytes` are held beyond what is
 * live. Waits for work that still uses them. */
int hip_alloc_trim(int device, size_t keep_bytes);

/* Holds at most this part, from 0 to 1, of what hip_alloc_mem_info calls total
 * (which then is the limit). Requests beyond it run out of memory; what is live
 * stays, also above it. 1 lifts the limit. */
int hip_alloc_set_memory_fraction(int device, double fraction);

/* Keeps the last `entries` requests and frees of every device, which a snapshot then
 * shows over time ("Active Memory Timeline"); 0 forgets them and keeps no more. An entry
 * takes 56 bytes. Off at the start. */
int hip_alloc_record_history(size_t entries);

/* Has `name_stack` called before every request, free and trim, in the thread that makes it, and
 * keeps its answer with the history's entry: a snapshot has it as `stack`, where 0 means
 * that nothing is known. The function may take locks, and may free memory; it must end without
 * unwinding. NULL ends this, and waits for threads that are in the function: then the caller must
 * have none of the locks that it takes. Off at the start. */
int hip_alloc_record_stacks(uint64_t (*name_stack)(void));

/* Functions of Python's C interface by which a stack is read; objects and thread states are
 * `void *` here. All of them are there in Python 3.9 and newer, but the one of `place`. */
struct hip_alloc_python {
    void *(*this_thread_state)(void); /* PyGILState_GetThisThreadState */
    int (*ensure)(void);              /* PyGILState_Ensure */
    void (*release)(int);             /* PyGILState_Release */
    void *(*frame_of)(void *);        /* PyThreadState_GetFrame */
    void *(*back)(void *);            /* PyFrame_GetBack */
    void *(*code)(void *);            /* PyFrame_GetCode */
    int (*place)(void *);             /* PyFrame_GetLasti; before 3.11 PyFrame_GetLineNumber */
    void (*increment)(void *);        /* Py_IncRef */
    void (*decrement)(void *);        /* Py_DecRef */
};

/* As hip_alloc_record_stacks, with a function of the library that names the stacks of Python's
 * threads, several times as fast as one in Python does. With `walks` 0 only `tag` is named:
 * it goes with every stack from now on, and 0 is none. The functions are those of the first
 * call, and none may be NULL. NULL instead of them ends this, waits for threads that are reading
 * their stacks, and forgets the stacks. To be called without Python's lock (ctypes.CDLL gives it
 * up), and ended before the interpreter is: from Python's atexit, since a thread that waits for
 * the lock of an interpreter that ends is ended with it. */
int hip_alloc_record_python_stacks(const struct hip_alloc_python *python, size_t python_size,
                                   int walks, uint64_t tag);

/* The stack behind a number: its tag, and its innermost `most` frames, each a code object (not
 * a new reference; it lives until the stacks are forgotten) and what `place` said. Where a pointer is
 * NULL nothing is written. Returns how many frames there are, and 0 with tag 0 for a number that is
 * none. */
size_t hip_alloc_python_stack(uint64_t number, uint64_t *tag, const void **codes, int *places,
                              size_t most);

/* Writes a pickle that PyTorch's memory_viz opens: the blocks of every accelerator, or
 * of the host (as device 0) where nothing else was used. An existing file is replaced. */
int hip_alloc_snapshot(const char *path);

/* HIP_ALLOC_ABI_VERSION of the library. */
unsigned hip_alloc_abi_version(void);

/* Since the first release of version 1: */

/* Whether HIP_ALLOC_CONF can be read: HIP_ALLOC_OK, or HIP_ALLOC_ERROR_ARGUMENT with the reason
 * in the first `size` bytes of *message (at most; it ends with a zero). With settings that
 * cannot be read, hip_alloc_malloc throws and the other functions fail, for that reason. */
int hip_alloc_check_settings(char *message, size_t size);

/* The name of a private pool: PyTorch's MempoolId_t. Two zeros name none. */
struct hip_alloc_pool_id {
  uint64_t first;
  uint64_t second;
};

/* Private pools. What a request gets in one, only requests in the same pool get again, and none of
 * its memory goes back to the driver, until the last of its users has let it go; what is live then
 * stays valid until it is freed. A pool is made for its first user. */

/* From now on requests that the filter takes are served by the pool, which has one user more, until
 * hip_alloc_end_allocate_to_pool; where several filters take one, that which came first decides.
 * `filter` is the address of a std::function<bool(hipStream_t)>, of which a copy is called in the
 * thread of each request, with its stream, while a lock of the library is held: it must not call the
 * library. It may be destroyed in any thread. Until it has taken a request for work on a stream that
 * is not captured, a graph may be captured: then no memory is given back to any device, and no
 * event recorded. Throws as hip_alloc_malloc does, also where requests go to the pool already.
 * PyTorch calls this, and declares the same function with a pair of two unsigned long long and a
 * std::function by value. */
void hip_alloc_begin_allocate_to_pool(int device, struct hip_alloc_pool_id pool, const void *filter);

/* Requests go to the pool no longer. It keeps the user that it had for that. */
void hip_alloc_end_allocate_to_pool(int device, struct hip_alloc_pool_id pool);

/* One user of the pool less. Waits for the device where that was the last one. */
void hip_alloc_release_pool(int device, struct hip_alloc_pool_id pool);

/* One user of the pool more. With `use_on_oom` other than 0, what is free in the pool serves other
 * requests, too, before they are refused. */
int hip_alloc_retain_pool(int device, struct hip_alloc_pool_id pool, int use_on_oom);

/* How many users the pool has; 0 where there is none, below 0 where the device cannot be used. */
int hip_alloc_pool_users(int device, struct hip_alloc_pool_id pool);

/* The release of the library, as "0.1.0". */
const char *hip_alloc_release(void);

#ifdef __cplusplus
}
#endif

#endif
