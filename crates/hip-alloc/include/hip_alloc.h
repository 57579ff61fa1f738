/* The C interface of libhip_alloc.so and hip_alloc.dll, version 1.
 *
 * Made for torch.cuda.memory.CUDAPluggableAllocator (hip_alloc_malloc and
 * hip_alloc_free have the signatures it calls), and for any other program.
 * Every function may be called from any thread, but not from signal handlers. Signal handlers must not
 * call fork() either, since they may have interrupted the library while it holds a lock. A stream may be destroyed
 * once no request names it any more, but not while memory is live that hip_alloc_record_stream declared to be used
 * on it. Requests open a device: hip_alloc_malloc, hip_alloc_begin_allocate_to_pool and hip_alloc_retain_pool. All
 * other functions leave a device alone that none of them has named, and find nothing there; of these only
 * hip_alloc_mem_info asks the runtime. Settings come from the
 * environment variables HIP_ALLOC_CONF and HIP_ALLOC_TRACE, which are read at the first call that
 * needs them.
 *
 * Functions that return int return 0 on success, and otherwise one of the
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
 * accelerator, with the runtime's index. */
#define HIP_ALLOC_HOST (-1)

#define HIP_ALLOC_OK 0
#define HIP_ALLOC_ERROR_DEVICE 1   /* no such device, or it cannot be used */
#define HIP_ALLOC_ERROR_ARGUMENT 2 /* a null pointer, or a number out of range */
#define HIP_ALLOC_ERROR_DRIVER 3   /* the runtime refused a call */
#define HIP_ALLOC_ERROR_IO 4       /* a file could not be written */

/* Allocates at least `size` bytes, which work on `stream` may use immediately. A request of
 * zero bytes gets a unique address. Never returns NULL: if memory runs out, it throws
 * c10::OutOfMemoryError if libc10 is loaded, otherwise std::bad_alloc;
 * if the device cannot be used, or fails, it throws c10::Error or
 * std::runtime_error. On Windows a process without c10.dll ends instead, with the message. Call it only from code through which C++ exceptions may propagate. */
void *hip_alloc_malloc(size_t size, int device, void *stream);

/* Frees memory. `stream` is the stream it was allocated on; work that is
 * already queued on that stream may still use it. NULL is ignored. A pointer that is
 * not a live allocation is reported on standard error and otherwise ignored. */
void hip_alloc_free(void *ptr, size_t size, int device, void *stream);

/* Declares that work on `stream` uses `ptr` too, so that it is not reused before that work is done. */
void hip_alloc_record_stream(void *ptr, void *stream);

/* The number of bytes that can still be allocated, and the most that this process could
 * hold. On unified memory these are limited by the memory of the machine;
 * *free is never larger than *total. */
int hip_alloc_mem_info(int device, size_t *free, size_t *total);

struct hip_alloc_stats {
  uint64_t live_bytes;       /* allocated and not freed */
  uint64_t live_peak_bytes;  /* highest since the start or the last reset */
  uint64_t held_bytes;       /* allocated from the driver */
  uint64_t held_peak_bytes;  /* highest since the start or the last reset */
  uint64_t live_allocations; /* live requests */
  uint64_t allocations;      /* requests served */
  uint64_t frees;            /* requests freed */
  uint64_t driver_allocs;    /* allocations from the driver */
  uint64_t driver_frees;     /* releases to the driver */
  uint64_t out_of_memory;    /* requests refused */
  uint64_t pending_bytes;    /* freed, but another stream may still use it */
  uint64_t capacity_bytes;   /* the total of hip_alloc_mem_info at the first request; before, 0 */
  /* Since the first release of version 1: */
  uint64_t allocated_bytes;       /* allocated in total; minus live_bytes: freed in total */
  uint64_t driver_alloc_bytes;    /* allocated from the driver in total */
  uint64_t live_allocations_peak; /* highest since the start or the last reset */
  uint64_t driver_blocks_peak;    /* the same, of driver_allocs - driver_frees */
  uint64_t active_peak_bytes;     /* the same, of live_bytes + pending_bytes */
  uint64_t alloc_retries;         /* driver allocations retried after releasing memory */
  uint64_t stream_syncs;          /* synchronisations of all streams, to release memory */
  uint64_t driver_free_bytes;     /* released to the driver in total */
  uint64_t driver_nanoseconds;    /* spent in driver calls that allocate and release memory */
  uint64_t give_backs;            /* times kept memory was released because it was needed elsewhere or unused */
};

/* Fills the first min(out_size, sizeof(struct hip_alloc_stats)) bytes of *out, so
 * that an older program works with a newer library. */
int hip_alloc_stats(int device, struct hip_alloc_stats *out, size_t out_size);

/* Resets the peaks to the current values. */
int hip_alloc_reset_peaks(int device);

/* Releases empty blocks until at most `keep_bytes` are held beyond the live
 * memory. Waits for work that still uses them. */
int hip_alloc_trim(int device, size_t keep_bytes);

/* Limits the memory held to this fraction, from 0 to 1, of the total of hip_alloc_mem_info
 * (which then returns the limit as total). Requests beyond it run out of memory; live memory
 * above it stays allocated. 1 removes the limit. */
int hip_alloc_set_memory_fraction(int device, double fraction);

/* Records the last `entries` requests and frees of every device, which a snapshot then
 * shows over time ("Active Memory Timeline"); 0 deletes the history and stops recording. An entry
 * takes 56 bytes. Off by default. */
int hip_alloc_record_history(size_t entries);

/* Calls `name_stack` before every request, free and trim, in the thread that makes it, and
 * stores the result in the history entry: a snapshot contains it as `stack`, where 0 means
 * unknown. The function may take locks and may free memory; it must return without
 * unwinding. NULL stops this, and waits for threads that are in the function, so the caller must
 * not hold any lock that the function takes. Off by default. */
int hip_alloc_record_stacks(uint64_t (*name_stack)(void));

/* Functions of Python's C API with which a stack is read; objects and thread states are
 * `void *` here. All except `place` exist in Python 3.9 and newer. */
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

/* Like hip_alloc_record_stacks, with a function of the library that records the stacks of Python
 * threads, several times as fast as a function in Python. With `walks` 0 only `tag` is recorded:
 * it is attached to every stack from now on, if it is below 2^24; 0 means none. The functions of the first call
 * are used, and none may be NULL. If `python` is NULL, recording stops, the call waits for threads that
 * are reading their stacks, and the stacks are deleted. Call it without holding the GIL (ctypes.CDLL releases
 * it), and stop recording before the interpreter exits, in an atexit handler of Python: a thread that waits for
 * the GIL of an exiting interpreter is terminated. */
int hip_alloc_record_python_stacks(const struct hip_alloc_python *python, size_t python_size,
                                   int walks, uint64_t tag);

/* The stack with a number: its tag, and its innermost `most` frames, each with its code object (a borrowed
 * reference, valid until the stacks are deleted) and the result of `place`. Pointers that are
 * NULL are not written to. Returns the number of frames; 0 for a stack that is not known. */
size_t hip_alloc_python_stack(uint64_t number, uint64_t *tag, const void **codes, int *places,
                              size_t most);

/* Writes a pickle for PyTorch's memory_viz: the blocks of every accelerator, or
 * of the host (as device 0) if nothing else was used. An existing file is replaced. */
int hip_alloc_snapshot(const char *path);

/* HIP_ALLOC_ABI_VERSION of the library. */
unsigned hip_alloc_abi_version(void);

/* Since the first release of version 1: */

/* Checks HIP_ALLOC_CONF: returns HIP_ALLOC_OK, or HIP_ALLOC_ERROR_ARGUMENT with the reason
 * in *message, which has `size` bytes (the text is truncated and ends with a zero byte). With invalid
 * settings, hip_alloc_malloc throws and the other functions fail, with this reason. */
int hip_alloc_check_settings(char *message, size_t size);

/* The ID of a private pool: PyTorch's MempoolId_t. Two zeros mean no pool. */
struct hip_alloc_pool_id {
  uint64_t first;
  uint64_t second;
};

/* Private pools. The memory of a pool is reused only by requests in the same pool, and not released
 * to the driver, as long as the pool has users; afterwards, live memory
 * stays valid until it is freed. A pool is created for its first user. */

/* Serves requests that the filter accepts from the pool, until hip_alloc_end_allocate_to_pool; the use count of
 * the pool is incremented. If several filters accept a request, the first one registered decides.
 * `filter` is the address of a std::function<bool(hipStream_t)>. A copy of it is called in the
 * thread of each request, with its stream, while the library holds a lock, so it must not call the
 * library. It may be destroyed in any thread. Until it has accepted a request for work on a stream that
 * is not being captured, a graph capture may be active: then no memory is released on any device, and no
 * event recorded. Throws like hip_alloc_malloc, also if requests already go to the pool.
 * PyTorch calls this function, and declares it with a pair of two unsigned long long and a
 * std::function, both by value. */
void hip_alloc_begin_allocate_to_pool(int device, struct hip_alloc_pool_id pool, const void *filter);

/* Stops serving requests from the pool. The use count stays as it is. */
void hip_alloc_end_allocate_to_pool(int device, struct hip_alloc_pool_id pool);

/* Decrements the use count of the pool. If it becomes zero, waits for the device. */
void hip_alloc_release_pool(int device, struct hip_alloc_pool_id pool);

/* Increments the use count of the pool. If `use_on_oom` is not 0, free memory of the pool is also used for other
 * requests before they run out of memory. */
int hip_alloc_retain_pool(int device, struct hip_alloc_pool_id pool, int use_on_oom);

/* The use count of the pool; 0 if it does not exist, negative if the device cannot be used. */
int hip_alloc_pool_users(int device, struct hip_alloc_pool_id pool);

/* The release of the library, such as "0.1.0". */
const char *hip_alloc_release(void);

#ifdef __cplusplus
}
#endif

#endif
