// The native ABI (stitch/abi.h) around an emitted program for the CPU.
//
// A program is a struct derived from ProgramBase:
//
//   struct Program : stitch::cpu::ProgramBase {
//     static constexpr InputType kInputs[] = {...};    // what the reference was captured with
//     static constexpr TensorType kOutputs[] = {...};
//     static constexpr int64_t kWorkspaceBytes = ...;  // temporaries, reused between kernels
//     static constexpr int64_t kThreadScratchBytes = ...;  // values that one thread keeps within a row
//     int32_t init();                                  // finds parameters, prepares library objects
//     int32_t forward(const Memory& memory);
//   };
//   STITCH_CPU_PROGRAM(Program)
//
// This header checks shapes and types, copies inputs that lie otherwise than captured, and hands out the
// workspace.
#ifndef STITCH_CPU_PROGRAM_H_
#define STITCH_CPU_PROGRAM_H_

#include <omp.h>
#include <algorithm>
#include <initializer_list>
#include <new>
#include <string>
#include <unordered_map>

#include "stitch/common/status.h"
#include "stitch/cpu/buffer.h"
#include "stitch/cpu/restride.h"

namespace stitch::cpu {

enum class Code : uint8_t { kInt = 0, kUint = 1, kFloat = 2, kBool = 6 };

struct TensorType {
  Code code;
  uint8_t bits;
  int32_t ndim;
  int64_t shape[STITCH_MAX_DIMS];

  int64_t elements() const {
    int64_t count = 1;
    for (int i = 0; i < ndim; ++i) count *= shape[i];
    return count;
  }
  int64_t bytes() const { return elements() * (bits / 8); }
};

inline constexpr int64_t kAlignment = 256;
inline constexpr int64_t round_up(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

inline bool is_dense(const DLTensor& t) {
  if (!t.strides) return true;
  int64_t step = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] != 1 && t.strides[i] != step) return false;
    step *= t.shape[i];
  }
  return true;
}

inline char* address(const DLTensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }

inline int64_t stride_of(const DLTensor& t, int dim) {
  if (t.strides) return t.strides[dim];
  int64_t step = 1;
  for (int i = t.ndim - 1; i > dim; --i) step *= t.shape[i];
  return step;
}

// Copies a tensor of any strides to dense row-major memory.
inline void copy_dense(int threads, const DLTensor& t, int64_t item, char* target) {
  Restride plan;
  int64_t step = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    plan.add(t.shape[i], stride_of(t, i), step);
    step *= t.shape[i];
  }
  restride(threads, plan, item, address(t), target);
}

// An input as the program reads it. A stride of 0 says that one value stands for a whole dim.
struct InputType {
  TensorType type;
  int64_t strides[STITCH_MAX_DIMS];

  // Whether `t` of this shape lies as the program reads it.
  bool matches(const DLTensor& t) const {
    for (int i = 0; i < type.ndim; ++i) {
      if (type.shape[i] != 1 && strides[i] != stride_of(t, i)) return false;
    }
    return true;
  }

  // The first dim over which the program reads one value and `t` may hold several; -1 for none.
  int unrepeated_dim(const DLTensor& t) const {
    for (int i = 0; i < type.ndim; ++i) {
      if (type.shape[i] > 1 && !strides[i] && stride_of(t, i)) return i;
    }
    return -1;
  }

  // Bytes from the first to behind the last element.
  int64_t span() const {
    int64_t last = 0;
    for (int i = 0; i < type.ndim; ++i) {
      if (!type.shape[i]) return 0;
      last += (type.shape[i] - 1) * strides[i];
    }
    return (last + 1) * (type.bits / 8);
  }

  // How the elements of `t` move to where the program reads them; repeated ones once.
  Restride layout(const DLTensor& t) const {
    Restride plan;
    for (int i = 0; i < type.ndim; ++i) {
      const bool repeats = type.shape[i] > 1 && !strides[i];
      plan.add(repeats ? 1 : type.shape[i], stride_of(t, i), strides[i]);
    }
    return plan;
  }
};

// Where one forward's tensors lie.
struct Memory {
  char* const* inputs;  // as kInputs says
  char* const* outputs;
  char* workspace;
  float* thread_scratch;
};

class ProgramBase {
 public:
  static constexpr int kWritten[] = {-1};  // inputs that the forward writes to; ends with -1
  int threads = 1;
  std::string error;

  int32_t fail(int32_t status, std::string sentence) {
    error = std::move(sentence);
    return status;
  }

  int32_t take_params(const StitchInitArgs& args) {
    threads = args.num_threads > 0 ? args.num_threads : omp_get_max_threads();
    params_.clear();
    for (int64_t i = 0; i < args.num_params; ++i)
      params_.emplace(args.params[i].name, &args.params[i].tensor);
    return STITCH_OK;
  }

  void forget_params() { params_.clear(); }

 protected:
  // Gives the dense data of a parameter, which must have the captured type and shape.
  template <class T>
  int32_t param(const char* name, const TensorType& type, const T** data) {
    const auto found = params_.find(name);
    if (found == params_.end()) return fail(STITCH_ERROR, std::string("no parameter is called ") + name);
    const DLTensor& t = *found->second;
    bool same = t.ndim == type.ndim && t.dtype.bits == type.bits &&
                t.dtype.code == static_cast<uint8_t>(type.code) && t.device.device_type == 1;
    for (int i = 0; same && i < t.ndim; ++i) same = t.shape[i] == type.shape[i];
    if (!same) {
      return fail(STITCH_UNSUPPORTED,
                  std::string(name) + " has another type or shape than it was captured with");
    }
    if (is_dense(t)) {
      *data = reinterpret_cast<const T*>(address(t));
      return STITCH_OK;
    }
    Buffer& copy = dense_params_[name];
    if (!copy.reserve(static_cast<size_t>(type.bytes()))) {
      return fail(STITCH_OUT_OF_MEMORY, std::string("no memory for a dense copy of ") + name);
    }
    copy_dense(threads, t, type.bits / 8, static_cast<char*>(copy.data()));
    *data = static_cast<const T*>(copy.data());
    return STITCH_OK;
  }

  // Gives a dense row-major copy of a window on a parameter, which lives as long as the program.
  template <class T>
  int32_t keep(const char* name, const T* from, std::initializer_list<int64_t> shape,
               std::initializer_list<int64_t> strides, const T** data) {
    if (shape.size() != strides.size() || shape.size() > STITCH_MAX_DIMS) {
      return fail(STITCH_ERROR, std::string(name) + " has too many dims to be copied");
    }
    Restride plan;
    int64_t step = 1;
    for (size_t dim = shape.size(); dim-- > 0;) {
      plan.add(shape.begin()[dim], strides.begin()[dim], step);
      step *= shape.begin()[dim];
    }
    Buffer& copy = kept_[name];
    if (!copy.reserve(static_cast<size_t>(step) * sizeof(T))) {
      return fail(STITCH_OUT_OF_MEMORY, std::string("no memory for a copy of ") + name);
    }
    T* const kept = static_cast<T*>(copy.data());
    restride(threads, plan, sizeof(T), reinterpret_cast<const char*>(from), reinterpret_cast<char*>(kept));
    *data = kept;
    return STITCH_OK;
  }

 private:
  std::unordered_map<std::string, const DLTensor*> params_;  // during init only
  std::unordered_map<std::string, Buffer> dense_params_, kept_;
};

// The six functions of the ABI over a program P.
template <class P>
struct Exports {
  static constexpr int kInputCount = static_cast<int>(sizeof(P::kInputs) / sizeof(InputType)) - 1;
  static constexpr int kOutputCount = static_cast<int>(sizeof(P::kOutputs) / sizeof(TensorType)) - 1;

  static int32_t init(const StitchInitArgs* args, P** program) {
    if (!*program) *program = new (std::nothrow) P();
    if (!*program) return STITCH_OUT_OF_MEMORY;
    STITCH_TRY((*program)->take_params(*args));
    const int32_t status = (*program)->init();
    (*program)->forget_params();
    return status;
  }

  static int32_t check_inputs(P& program, const DLTensor* inputs, int32_t count) {
    if (count != kInputCount) {
      return program.fail(STITCH_UNSUPPORTED, "takes " + std::to_string(kInputCount) +
                                                  " tensors, was given " + std::to_string(count));
    }
    for (int i = 0; i < kInputCount; ++i) {
      const TensorType& type = P::kInputs[i].type;
      const DLTensor& t = inputs[i];
      bool same = t.ndim == type.ndim && t.dtype.code == static_cast<uint8_t>(type.code) &&
                  t.dtype.bits == type.bits && t.dtype.lanes == 1;
      for (int d = 0; same && d < t.ndim; ++d) same = t.shape[d] == type.shape[d];
      if (!same) {
        return program.fail(
            STITCH_UNSUPPORTED,
            "input " + std::to_string(i) + " has another shape or type than the program was made for");
      }
      const int dim = P::kInputs[i].unrepeated_dim(t);
      if (dim >= 0) {
        return program.fail(STITCH_UNSUPPORTED,
                            "input " + std::to_string(i) + " was captured with one value for all of dim " +
                                std::to_string(dim) + " (stride 0); expand() it there, or stitch it anew");
      }
    }
    return STITCH_OK;
  }

  static int64_t staging_bytes(const DLTensor* inputs) {
    int64_t bytes = 0;
    for (int i = 0; i < kInputCount; ++i) {
      if (!P::kInputs[i].matches(inputs[i])) bytes += round_up(P::kInputs[i].span());
    }
    return bytes;
  }

  static int64_t workspace_bytes(const P& program, const DLTensor* inputs) {
    return round_up(P::kWorkspaceBytes) + round_up(P::kThreadScratchBytes * program.threads) +
           staging_bytes(inputs);
  }

  static int32_t plan(P& program, const DLTensor* inputs, int32_t count, StitchPlan* plan) {
    STITCH_TRY(check_inputs(program, inputs, count));
    plan->num_outputs = kOutputCount;
    plan->workspace_bytes = static_cast<uint64_t>(workspace_bytes(program, inputs));
    plan->flags = 0;
    if (plan->capacity < kOutputCount) return program.fail(STITCH_ERROR, "too little room for output shapes");
    for (int i = 0; i < kOutputCount; ++i) {
      const TensorType& type = P::kOutputs[i];
      StitchTensorSpec& spec = plan->outputs[i];
      spec.struct_size = sizeof(StitchTensorSpec);
      spec.ndim = type.ndim;
      spec.dtype = {static_cast<uint8_t>(type.code), type.bits, 1};
      for (int d = 0; d < type.ndim; ++d) spec.shape[d] = type.shape[d];
    }
    return STITCH_OK;
  }

  static int32_t forward(P& program, const StitchForwardArgs* args) {
    STITCH_TRY(check_inputs(program, args->inputs, args->num_inputs));
    if (args->num_outputs != kOutputCount) return program.fail(STITCH_ERROR, "wrong number of outputs");
    if (static_cast<int64_t>(args->workspace_bytes) < workspace_bytes(program, args->inputs)) {
      return program.fail(STITCH_ERROR, "the workspace is smaller than stitch_plan asked for");
    }
    char* room = static_cast<char*>(args->workspace);
    char* const thread_scratch = room + round_up(P::kWorkspaceBytes);
    char* staging = thread_scratch + round_up(P::kThreadScratchBytes * program.threads);
    char* inputs[kInputCount + 1];
    char* outputs[kOutputCount + 1];
    for (int i = 0; i < kInputCount; ++i) {
      inputs[i] = address(args->inputs[i]);
      const InputType& made_for = P::kInputs[i];
      if (made_for.matches(args->inputs[i])) continue;
      restride(program.threads, made_for.layout(args->inputs[i]), made_for.type.bits / 8, inputs[i], staging);
      inputs[i] = staging;
      staging += round_up(made_for.span());
    }
    for (int i = 0; i < kOutputCount; ++i) outputs[i] = address(args->outputs[i]);
    STITCH_TRY(program.forward({inputs, outputs, room, reinterpret_cast<float*>(thread_scratch)}));
    for (const int i : P::kWritten) {
      if (i < 0 || P::kInputs[i].matches(args->inputs[i])) continue;
      const Restride back = P::kInputs[i].layout(args->inputs[i]).reversed();
      restride(program.threads, back, P::kInputs[i].type.bits / 8, inputs[i], address(args->inputs[i]));
    }
    return STITCH_OK;
  }
};

}  // namespace stitch::cpu

#define STITCH_CPU_PROGRAM(Program)                                                                   \
  struct StitchHandle {                                                                               \
    Program* program = nullptr;                                                                       \
  };                                                                                                  \
  extern "C" {                                                                                        \
  STITCH_EXPORT int32_t stitch_abi_version(void) { return STITCH_ABI_VERSION; }                       \
  STITCH_EXPORT int32_t stitch_init(const StitchInitArgs* args, StitchHandle** handle) {              \
    if (!*handle) *handle = new (std::nothrow) StitchHandle();                                        \
    if (!*handle) return STITCH_OUT_OF_MEMORY;                                                        \
    return stitch::cpu::Exports<Program>::init(args, &(*handle)->program);                            \
  }                                                                                                   \
  STITCH_EXPORT int32_t stitch_plan(StitchHandle* handle, const DLTensor* inputs, int32_t num_inputs, \
                                    StitchPlan* plan) {                                               \
    return stitch::cpu::Exports<Program>::plan(*handle->program, inputs, num_inputs, plan);           \
  }                                                                                                   \
  STITCH_EXPORT int32_t stitch_forward(StitchHandle* handle, const StitchForwardArgs* args) {         \
    return stitch::cpu::Exports<Program>::forward(*handle->program, args);                            \
  }                                                                                                   \
  STITCH_EXPORT const char* stitch_last_error(StitchHandle* handle) {                                 \
    return handle && handle->program ? handle->program->error.c_str() : "";                           \
  }                                                                                                   \
  STITCH_EXPORT void stitch_free(StitchHandle* handle) {                                              \
    if (handle) delete handle->program;                                                               \
    delete handle;                                                                                    \
  }                                                                                                   \
  }

#endif  // STITCH_CPU_PROGRAM_H_
