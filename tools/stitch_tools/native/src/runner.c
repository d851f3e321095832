/* The timed loop of a native program: no Python between a request and its answer.
 *
 * The controller owns the clock. It writes an 8-byte count k into a pipe, and this loop makes k calls of
 * stitch_forward over a ring of prepared arguments, waits for the device, and answers with an 8-byte status.
 * Nothing is timed here, since the candidate shares this process.
 *
 * stitch_runner_resolve is called before the candidate is loaded, so that the candidate cannot put its own
 * cudaDeviceSynchronize in front of the driver's. The library is linked with -z now for the same reason.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stddef.h>
#include <unistd.h>

#include "stitch/abi.h"

#define STOP UINT64_MAX             /* a count that ends the loop */
#define REQUEST (UINT64_C(1) << 63) /* a word with this bit asks for something that nobody times */
#define SYNC_FAILED 0x10000u        /* status: the device reported an error after the calls */

typedef int32_t (*ForwardFunction)(StitchHandle*, const StitchForwardArgs*);
typedef int32_t (*Service)(uint64_t word, uint64_t slot);
typedef int (*DeviceSynchronize)(void);

typedef struct {
  uint64_t struct_size;
  ForwardFunction forward;
  StitchHandle* handle;
  const StitchForwardArgs* ring; /* `slots` prepared calls; each call takes the next one */
  uint64_t slots;
  int32_t device_type; /* 1: CPU, 2: CUDA */
  int32_t request_fd;
  int32_t reply_fd;
  Service service; /* serves requests; the next call takes `slot` */
} StitchLoop;

static DeviceSynchronize device_synchronize;

/* 0 when the driver function was found: in a library that is loaded already, else in one of `names`. */
STITCH_EXPORT int32_t stitch_runner_resolve(const char* const* names, int32_t count) {
  void* library = NULL;
  for (int32_t i = 0; i < count && library == NULL; ++i) library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
  for (int32_t i = 0; i < count && library == NULL; ++i) library = dlopen(names[i], RTLD_NOW);
  if (library == NULL) return STITCH_MISSING_LIBRARY;
  *(void**)&device_synchronize = dlsym(library, "cudaDeviceSynchronize");
  return device_synchronize ? STITCH_OK : STITCH_MISSING_LIBRARY;
}

/* 1 when all 8 bytes went through, 0 when the controller is gone. */
static int read_word(int fd, uint64_t* word) {
  size_t done = 0;
  while (done < sizeof *word) {
    ssize_t count = read(fd, (char*)word + done, sizeof *word - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return 0;
    done += (size_t)count;
  }
  return 1;
}

static int write_word(int fd, uint64_t word) {
  size_t done = 0;
  while (done < sizeof word) {
    ssize_t count = write(fd, (const char*)&word + done, sizeof word - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return 0;
    done += (size_t)count;
  }
  return 1;
}

/* Serves batches of calls until the controller sends STOP or closes its end. Returns STITCH_OK, or why it
 * could not start. A failing call ends its batch at once; the status that the controller reads is the call's
 * own. */
STITCH_EXPORT int32_t stitch_runner_loop(StitchLoop* loop) {
  if (loop->struct_size != sizeof *loop || loop->slots == 0) return STITCH_ERROR;
  if (loop->device_type == 2 && !device_synchronize) return STITCH_MISSING_LIBRARY;
  uint64_t calls, slot = 0;
  while (read_word(loop->request_fd, &calls) && calls != STOP) {
    uint64_t status = STITCH_OK;
    if (calls & REQUEST) {
      status = (uint64_t)(uint32_t)loop->service(calls, slot);
      if (!write_word(loop->reply_fd, status)) break;
      continue;
    }
    for (uint64_t i = 0; i < calls && status == STITCH_OK; ++i) {
      status = (uint64_t)(uint32_t)loop->forward(loop->handle, &loop->ring[slot]);
      if (++slot == loop->slots) slot = 0;
    }
    /* The whole device, not a stream: work that a program puts elsewhere belongs to its calls, too. */
    if (loop->device_type == 2 && device_synchronize() != 0) status |= SYNC_FAILED;
    if (!write_word(loop->reply_fd, status)) break;
  }
  return STITCH_OK;
}
