/* stitch native ABI, version 1: #include "stitch/abi.h", which every build finds.
 *
 * A program is one shared library that exports the six functions at the end of this file. It needs no
 * header of torch and links no library of torch. One call of stitch_forward is one whole forward pass.
 *
 * Rules
 *  - Every struct starts with its own size, so that either side can be newer. Read no field beyond it.
 *  - Tensors are DLPack tensors: honour `strides` (NULL: dense, row-major) and `byte_offset`.
 *  - The caller owns all tensors, the outputs and the workspace (256-byte aligned, content undefined).
 *  - Parameters stay valid and unchanged until stitch_free, or until stitch_init is called again.
 *  - stitch_init may repack weights; work that depends on inputs belongs into stitch_forward.
 *  - Side streams join before stitch_forward returns. A program that sets STITCH_CAPTURABLE neither
 *    synchronises with the host nor allocates in stitch_forward.
 *  - Only the CUDA runtime is linked. Other libraries are loaded in stitch_init by their soname (dlopen of
 *    libcublasLt.so.13 and the like), with STITCH_MISSING_LIBRARY where that fails.
 *  - One call at a time per handle; several handles may coexist.
 *  - Outputs are those of the reference, in its order (of a dict: in that of its keys there).
 *  - Functions return STITCH_OK or an error code, and never throw across this boundary.
 *  - Flags of a build: C++17, -O3 -march=native -fopenmp (nvcc: -O1 for the host); OpenMP and intrinsics are
 *    allowed.
 *  - Tensors in memory of the judge begin at 256 bytes, views and a caller's own at their element's size:
 *    use aligned loads only where you have looked at the address.
 *  - The caller sets every struct_size, also of plan->outputs[i]; the program sets no strides: it reads those
 *    of its inputs, and its outputs are dense.
 *  - Order: stitch_init, then stitch_plan at least once for each set of input shapes, then any number of
 *    stitch_forward calls with them. Plans of other shapes may come in between: stitch_forward reads shapes
 *    from its own arguments.
 *  - Outputs and workspace are filled with NaN patterns before a check's calls: a NaN in a result may read
 *    "never written".
 */
#ifndef STITCH_ABI_H_
#define STITCH_ABI_H_

#include <stdint.h>

#ifdef __cplusplus
#define STITCH_EXPORT __attribute__((visibility("default")))
extern "C" {
#else
#define STITCH_EXPORT __attribute__((visibility("default")))
#endif

#define STITCH_ABI_VERSION 1
#define STITCH_MAX_DIMS 16

/* The part of DLPack (1.0 and later) that crosses this boundary, layout-compatible with dlpack.h. */
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
typedef struct {
  int32_t device_type; /* 1: CPU, 2: CUDA */
  int32_t device_id;
} DLDevice;

typedef struct {
  uint8_t code; /* 0 int, 1 uint, 2 float, 4 bfloat, 5 complex, 6 bool, 10 float8_e4m3fn, 12 float8_e5m2 */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} DLDataType;

typedef struct {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides; /* in elements; NULL: dense, row-major */
  uint64_t byte_offset;
} DLTensor;
#endif

typedef enum {
  STITCH_OK = 0,
  STITCH_ERROR = 1,       /* see stitch_last_error */
  STITCH_UNSUPPORTED = 2, /* inputs of this shape, type or layout are refused; nothing was written */
  STITCH_OUT_OF_MEMORY = 3,
  STITCH_MISSING_LIBRARY = 4 /* a library that the program loads is not there */
} StitchStatus;

enum {
  STITCH_CAPTURABLE = 1u << 0,   /* stitch_forward may be recorded into a CUDA graph */
  STITCH_INPLACE_STATE = 1u << 1 /* stitch_forward writes to state tensors */
};

typedef struct {
  uint64_t struct_size;
  const char* name; /* qualified name in the reference ("encoder.0.weight") */
  DLTensor tensor;
} StitchNamedTensor;

typedef struct {
  uint64_t struct_size;
  int64_t num_params;
  const StitchNamedTensor* params; /* parameters and buffers */
  DLDevice device;
  void* stream;        /* cudaStream_t, NULL on CPU */
  int32_t num_threads; /* CPU threads to use at most; 0: the runtime's default */
} StitchInitArgs;

typedef struct {
  uint64_t struct_size;
  int32_t ndim;
  DLDataType dtype;
  int64_t shape[STITCH_MAX_DIMS];
} StitchTensorSpec;

typedef struct {
  uint64_t struct_size;
  int32_t capacity;          /* in: room in `outputs`; more outputs than that are an error */
  int32_t num_outputs;       /* out */
  StitchTensorSpec* outputs; /* in: caller's array; out: filled; dense row-major */
  uint64_t workspace_bytes;  /* out */
  uint32_t flags;            /* out: STITCH_CAPTURABLE | STITCH_INPLACE_STATE */
} StitchPlan;

typedef struct {
  uint64_t struct_size;
  const DLTensor* inputs;
  const DLTensor* state; /* updated buffers; with random numbers state[0] is the Philox seed and offset */
  DLTensor* outputs;
  int32_t num_inputs;
  int32_t num_state;
  int32_t num_outputs;
  void* workspace;
  uint64_t workspace_bytes;
  void* stream;
} StitchForwardArgs;

typedef struct StitchHandle StitchHandle; /* defined by the program */

STITCH_EXPORT int32_t stitch_abi_version(void);
/* On failure *handle may still be set, so that stitch_last_error can be asked; free it then too. */
STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle);
STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs,
                                  StitchPlan* plan);
STITCH_EXPORT int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args);
/* A NUL-terminated sentence owned by the handle, "" when nothing failed. A NULL handle is allowed. */
STITCH_EXPORT const char* stitch_last_error(StitchHandle* handle);
STITCH_EXPORT void stitch_free(StitchHandle* handle);

/* Optional: STITCH_BORDER("encoder.0", pointer, bytes) in stitch_forward shows what a step computed, dense
 * and in the type and shape of what the reference's submodule of that name returns (of several tensors: the
 * first). Where the program is wrong, the judge compares these borders, and names the first that differs.
 * Else it does nothing. The memory has to stay until the call's work is done; on a GPU it is copied on the
 * call's stream. */
#ifdef STITCH_BORDERS
typedef struct {
  const char* name;
  int32_t ndim;
  DLDataType dtype;
  int64_t shape[STITCH_MAX_DIMS];
} StitchBorderSpec;
void stitch_border(const char* name, const void* data, uint64_t bytes);
#define STITCH_BORDER(name, data, bytes) stitch_border((name), (data), (bytes))
#else
#define STITCH_BORDER(name, data, bytes) ((void)0)
#endif

#ifdef __cplusplus
}
#endif
#endif /* STITCH_ABI_H_ */
